-- `tidewheel_enqueue` measures a payload as intake does: JSON without blanks between its tokens. The text of jsonb has one behind each
-- comma and colon, so it refused payloads that Python and REST accept.
DO $$
DECLARE
    before text := pg_get_functiondef('tidewheel_enqueue'::regproc);
    after  text;
BEGIN
    after := replace(before, 'IF octet_length(payload::text) > 262144 THEN', $new$IF octet_length(payload::text) > 262144 THEN
        v_text := regexp_replace(payload::text, '"(?:[^"\\]|\\.)*"', '', 'g');
        v_bytes := octet_length(payload::text) - (length(v_text) - length(replace(v_text, ' ', '')));
    END IF;
    IF v_bytes > 262144 THEN$new$);
    after := replace(after, 'more than 262144'', octet_length(payload::text)', 'more than 262144'', v_bytes');
    IF strpos(after, 'v_text :=') = 0 OR strpos(after, 'more than 262144'', v_bytes') = 0 THEN
        RAISE EXCEPTION 'tidewheel_enqueue is not the function of 0005_functions.sql';
    END IF;
    EXECUTE after;
END
$$;
