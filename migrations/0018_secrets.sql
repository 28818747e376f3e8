-- Each secret has one use, and a table that only the roles of that use read.

-- Keys of task tokens. Every key verifies, and the newest one signs once all services know it. `settings.task_token_key`, which
-- applications read too, stays for services of 0.1.0: the first rotation replaces its value by one that opens nothing here.
CREATE TABLE task_token_keys (
    key_id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    secret     bytea NOT NULL DEFAULT sha256((gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text)::bytea)
               CHECK (octet_length(secret) = 32),
    created_at timestamptz NOT NULL DEFAULT tidewheel_now()
);
COMMENT ON TABLE task_token_keys IS 'keys of the signatures of task tokens; `tidewheel secrets rotate task-tokens` adds one';
INSERT INTO task_token_keys (secret) SELECT decode(value #>> '{}', 'hex') FROM settings WHERE name = 'task_token_key';

-- No process has seen a new database, and no token is in use.
UPDATE settings SET value = to_jsonb(encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex'))
 WHERE name = 'task_token_key' AND NOT EXISTS (SELECT FROM processes) AND NOT EXISTS (SELECT FROM jobs);

-- Sign-ins of browsers to the console, and links that open it once. A cookie has a random secret, of which only the digest is here.
CREATE TABLE sign_ins (
    digest      bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    key_id      text NOT NULL,
    secret_hash bytea NOT NULL,
    name        text,
    is_link     boolean NOT NULL DEFAULT false,
    secure      boolean NOT NULL DEFAULT false,
    made_at     timestamptz NOT NULL DEFAULT tidewheel_now(),
    used_at     timestamptz NOT NULL DEFAULT tidewheel_now()
);
COMMENT ON COLUMN sign_ins.digest IS 'SHA-256 of a secret with 256 random bits';
COMMENT ON COLUMN sign_ins.secret_hash IS 'api_keys.secret_hash as the sign-in has shown it: another key of the same id opens nothing';
COMMENT ON COLUMN sign_ins.used_at IS 'written at most every ten minutes';
CREATE INDEX sign_ins_by_key ON sign_ins (key_id, made_at);

-- What keys a tenant may make. Null: 20 keys, and no more than the rate of the setting of the API.
ALTER TABLE tenants ADD COLUMN max_keys integer CHECK (max_keys > 0), ADD COLUMN max_key_rate double precision CHECK (max_key_rate > 0);
COMMENT ON COLUMN tenants.max_keys IS 'most API keys in force; null: 20';
COMMENT ON COLUMN tenants.max_key_rate IS 'most requests a second of one API key, and of all of them together; null: see the settings of the API';
