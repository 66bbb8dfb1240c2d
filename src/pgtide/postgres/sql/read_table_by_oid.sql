select (select coalesce(jsonb_agg(jsonb_build_object(
                   'name', a.attname, 'attnum', a.attnum,
                   'type_name', format_type(a.atttypid, a.atttypmod),
                   'has_default', a.atthasdef or a.attidentity <> '', 'not_null', a.attnotnull)), '[]')
        from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
       (select coalesce(array_agg(a.attname::text order by k.ordinality), '{}')
        from pg_index i
        cross join unnest(i.indkey) with ordinality k (attnum, ordinality)
        join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
        where i.indrelid = c.oid and i.indisprimary and i.indimmediate and k.ordinality <= i.indnkeyatts)
from pg_class c
where c.oid = %(oid)s::oid
