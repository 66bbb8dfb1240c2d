select c.oid::int8,
       n.nspname,
       c.relname,
       c.relreplident::text,
       (select coalesce(jsonb_agg(jsonb_build_object(
                   'name', a.attname,
                   'type_oid', a.atttypid::int8,
                   'type_modifier', a.atttypmod,
                   'attnum', a.attnum,
                   'type_name', format_type(a.atttypid, a.atttypmod),
                   'has_default', a.atthasdef or a.attidentity <> '',
                   'not_null', a.attnotnull,
                   'key', c.relreplident = 'f' or a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])) order by a.attnum), '[]')
        from pg_attribute a
        left join pg_index i on i.indrelid = c.oid
             and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''),
       (select coalesce(array_agg(a.attname::text order by k.ordinality), '{}')
        from pg_index i
        cross join unnest(i.indkey) with ordinality k (attnum, ordinality)
        join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
        where i.indrelid = c.oid and i.indisprimary and i.indimmediate and k.ordinality <= i.indnkeyatts),
       greatest(c.reltuples, 0)::int8,
       pg_table_size(c.oid),
       (pg_relation_size(c.oid) / current_setting('block_size')::int8)::int8,
       coalesce(pg_relation_filenode(c.oid), 0)::int8
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join unnest(%(schemas)s::text[], %(names)s::text[]) wanted (nspname, relname)
  on wanted.nspname = n.nspname and wanted.relname = c.relname
where c.relkind in ('r', 'p')
