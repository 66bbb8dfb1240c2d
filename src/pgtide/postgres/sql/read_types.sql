select t.oid::int8,
       t.typname::text,
       case when t.typelem <> 0 and t.typlen = -1 then 'a' else t.typtype::text end,
       t.typbasetype::int8,
       t.typtypmod,
       case when t.typelem <> 0 and t.typlen = -1 then t.typelem::int8 else 0 end,
       t.typsend <> 0
from pg_type t
where t.oid = any (%(oids)s::oid[])
  and (t.oid >= 16384 or t.typsend = 0)
