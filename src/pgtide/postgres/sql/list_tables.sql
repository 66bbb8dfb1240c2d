select n.nspname, c.relname
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r'
  and c.relpersistence = 'p'
  and not c.relispartition
  and n.nspname not in ('pg_catalog', 'information_schema', 'pgtide')
  and n.nspname not like 'pg\_toast%'
  and not exists (
    select from pg_depend d
    where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
  )
order by 1, 2
