
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

CREATE FUNCTION public.agent_task_refuse_end() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    raise exception 'an ended task changes only to Running, and only with a new item' using errcode = 'check_violation';
end
$$;

CREATE FUNCTION public.intervention_request_refuse_end() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    raise exception 'a request goes from pending to one end and does not come back' using errcode = 'check_violation';
end
$$;

CREATE FUNCTION public.user_spelling_changes(name text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select name collate "C" ~ '[A-Z]' or octet_length(name) <> char_length(name)
$$;

CREATE FUNCTION public.user_spelling_keep() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, to_jsonb(new) ->> tg_argv[0]) on conflict do nothing;
    return null;
end
$$;

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE public._sqlx_migrations (
    version bigint NOT NULL,
    description text NOT NULL,
    installed_on timestamp with time zone DEFAULT now() NOT NULL,
    success boolean NOT NULL,
    checksum bytea NOT NULL,
    execution_time bigint NOT NULL
);

CREATE TABLE public.agent_task (
    task_id uuid NOT NULL,
    root_task_id uuid NOT NULL,
    parent_task_id uuid,
    parent_call_id uuid,
    tenant text NOT NULL,
    user_id text NOT NULL,
    session_id text NOT NULL,
    agent text NOT NULL,
    agent_version text NOT NULL,
    agent_path text NOT NULL,
    metadata text NOT NULL,
    status text NOT NULL,
    status_seq bigint NOT NULL,
    version bigint NOT NULL,
    last_seq bigint NOT NULL,
    next_event bigint NOT NULL,
    busy bigint NOT NULL,
    open_requests bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    total_tokens bigint NOT NULL,
    model_calls bigint NOT NULL,
    phase text NOT NULL,
    lease_owner text,
    lease_until bigint,
    wake_at bigint,
    takeovers bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    begun boolean DEFAULT false NOT NULL,
    fruitless bigint DEFAULT 0 NOT NULL,
    CONSTRAINT agent_task_counters CHECK (((busy >= 0) AND (open_requests >= 0))),
    CONSTRAINT agent_task_lease CHECK (((phase = 'leased'::text) = ((lease_owner IS NOT NULL) AND (lease_until IS NOT NULL)))),
    CONSTRAINT agent_task_parent CHECK (((parent_task_id IS NULL) = (root_task_id = task_id))),
    CONSTRAINT agent_task_paused CHECK (((status <> 'Paused'::text) OR ((open_requests > 0) AND (busy = 0)))),
    CONSTRAINT agent_task_phase_check CHECK ((phase = ANY (ARRAY['queued'::text, 'leased'::text, 'parked'::text]))),
    CONSTRAINT agent_task_status_check CHECK ((status = ANY (ARRAY['Running'::text, 'Paused'::text, 'Completed'::text, 'Failed'::text, 'Canceled'::text])))
)
WITH (fillfactor='70');

CREATE TABLE public.agent_task_item (
    task_id uuid NOT NULL,
    seq bigint NOT NULL,
    root_task_id uuid NOT NULL,
    event_number bigint NOT NULL,
    change_id uuid NOT NULL,
    type text NOT NULL,
    role text NOT NULL,
    at bigint NOT NULL,
    request_id uuid,
    body text NOT NULL
);

CREATE TABLE public.agent_version (
    digest text NOT NULL,
    definition text NOT NULL,
    created_at bigint NOT NULL
);

CREATE TABLE public.browser_session (
    token_sha256 text NOT NULL,
    binding text NOT NULL,
    expires_at bigint NOT NULL
);

CREATE TABLE public.credential (
    task_id uuid NOT NULL,
    name text NOT NULL,
    tenant text NOT NULL,
    root_task_id uuid NOT NULL,
    request_id uuid NOT NULL,
    key_id text NOT NULL,
    sealed text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint
);

CREATE TABLE public.database_identity (
    id bigint NOT NULL,
    identity text,
    doubted_at bigint,
    CONSTRAINT database_identity_id_check CHECK ((id = 1))
);

CREATE TABLE public.decision (
    tenant text NOT NULL,
    user_id text NOT NULL,
    request_id uuid NOT NULL,
    tool_call_id uuid NOT NULL,
    action text NOT NULL,
    final boolean NOT NULL,
    task_id uuid NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL
);

CREATE TABLE public.idempotency (
    tenant text NOT NULL,
    user_id text NOT NULL,
    path text NOT NULL,
    key text NOT NULL,
    body_digest text NOT NULL,
    task_id uuid NOT NULL,
    request_id uuid,
    created_at bigint NOT NULL,
    person text
);

CREATE TABLE public.intervention_request (
    request_id uuid NOT NULL,
    task_id uuid NOT NULL,
    seq bigint NOT NULL,
    root_task_id uuid NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    required bigint NOT NULL,
    call_id uuid,
    created_at bigint NOT NULL,
    expires_at bigint,
    CONSTRAINT intervention_request_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'responded'::text, 'resumed'::text, 'expired'::text, 'withdrawn'::text])))
)
WITH (fillfactor='80');

CREATE TABLE public.request_approver (
    tenant text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    request_id uuid NOT NULL,
    CONSTRAINT request_approver_kind_check CHECK ((kind = ANY (ARRAY['owner'::text, 'user'::text, 'group'::text])))
);

CREATE TABLE public.user_spelling (
    tenant text NOT NULL,
    spelling text NOT NULL,
    folded text
);

INSERT INTO public._sqlx_migrations VALUES (1, 'foundation', '2026-11-23 04:58:24.045957+00', true, '\xd6900f5ee5a3ca7c4d96d4059ac89e5b3c296224664a4e23476538001e5d948a203b5dd248662a40c2840066e2911021', 25802377);
INSERT INTO public._sqlx_migrations VALUES (2, 'identity', '2026-11-23 04:58:24.072485+00', true, '\x8cd6d691f158e264cc291e56fa580274c9b2e115fac66f3e14d5f935ce4afb7f610333f2b7a9b2bc92490bbbfd8abb0e', 2996253);
INSERT INTO public._sqlx_migrations VALUES (3, 'spent keys', '2026-11-23 04:58:24.075972+00', true, '\xdedf6af941eda8a44bde5832f472ef3ebb928f1dc98146fc089c268413d96cadaac619052ca9e07f863ceaa1867401bb', 1388956);
INSERT INTO public._sqlx_migrations VALUES (4, 'browser session', '2026-11-23 04:58:24.077736+00', true, '\x73635c8a66bf986a0ee496b450739e866303dbd7c491038eb951f8bec9a4c30410112b2f96414babb556e15f1c7dca9c', 3368823);
INSERT INTO public._sqlx_migrations VALUES (5, 'credential', '2026-11-23 04:58:24.081492+00', true, '\xbe6c3af4b9d4d4eac17533b727db8088672b6601d7c0ece55685507c84dbb07c6f808665890d23268f269741c202db9c', 10543761);
INSERT INTO public._sqlx_migrations VALUES (6, 'sub agent', '2026-11-23 04:58:24.092613+00', true, '\xf3344a4821997fc5e612fc1b59320d730e8501d57e0f4d77f1556f88a42938a57c5c9b532e2a0b2f4b3d89d7aeb0dd4a', 2153190);
INSERT INTO public._sqlx_migrations VALUES (7, 'fruitless', '2026-11-23 04:58:24.095344+00', true, '\x489db2ac6273c451ed9809152e0de7bb1f25422d81d09e1296310d9e766573fb13e30b6e229543dc9067aab8ac743541', 1624157);
INSERT INTO public._sqlx_migrations VALUES (8, 'user spelling', '2026-11-23 04:58:24.097348+00', true, '\xbe6b823121f17f5d93c0047115994aa9a17a72a256a6dcb25ed69686da23c228e5aac005bcd6b68a1231af03a80e7069', 6581979);
INSERT INTO public._sqlx_migrations VALUES (9, 'stored spellings', '2026-11-23 04:58:24.104319+00', true, '\xf0af8072a20d5fe85b646e38c2662430494f3ec339af6941b48505ed1550ee4368d9d1771824e4e619cc1f77b6de6535', 5306216);

INSERT INTO public.agent_task VALUES ('01a206c5-0d1b-72ed-9a2a-ead5492b4328', '01a206c5-0d1b-72ed-9a2a-ead5492b4328', NULL, NULL, 'default', 'alice', '01a206c5-0d1b-72ed-9a2a-ead682b14f7b', 'clerk', 'sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a', '["clerk"]', '{}', 'Completed', 4, 2, 4, 4, 0, 0, 10, 1, 11, 1, 'parked', NULL, NULL, NULL, 0, 1795409907011799, 1795409907042946, false, 0);
INSERT INTO public.agent_task VALUES ('01a206c5-0dec-719f-9a7b-f172531921f5', '01a206c5-0dec-719f-9a7b-f172531921f5', NULL, NULL, 'default', 'alice', '01a206c5-0dec-719f-9a7b-f1737fec448b', 'clerk', 'sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a', '["clerk"]', '{}', 'Paused', 6, 2, 6, 6, 0, 1, 10, 5, 15, 1, 'parked', NULL, NULL, NULL, 0, 1795409907182659, 1795409907195978, false, 0);
INSERT INTO public.agent_task VALUES ('01a206c5-0eaa-740e-8baa-ed90979c9b18', '01a206c5-0eaa-740e-8baa-ed90979c9b18', NULL, NULL, 'default', 'alice', '01a206c5-0eaa-740e-8baa-ed91d44dcebf', 'clerk', 'sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a', '["clerk"]', '{}', 'Paused', 6, 2, 6, 6, 0, 1, 10, 5, 15, 1, 'parked', NULL, NULL, NULL, 0, 1795409907371458, 1795409907374669, false, 0);
INSERT INTO public.agent_task VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', NULL, NULL, 'default', 'alice', '01a206c5-0f3d-74e8-b7fe-1ea927d97b32', 'clerk', 'sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a', '["clerk"]', '{}', 'Canceled', 9, 3, 9, 9, 0, 0, 10, 5, 15, 1, 'parked', NULL, NULL, NULL, 0, 1795409907519073, 1795409907669203, false, 0);

INSERT INTO public.agent_task_item VALUES ('01a206c5-0d1b-72ed-9a2a-ead5492b4328', 1, '01a206c5-0d1b-72ed-9a2a-ead5492b4328', 1, '01a206c5-0d1b-72ed-9a2a-ead71f4c0c4e', 'task_status', 'system', 1795409907011799, NULL, '{"type":"task_status","status":"Running"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0d1b-72ed-9a2a-ead5492b4328', 2, '01a206c5-0d1b-72ed-9a2a-ead5492b4328', 2, '01a206c5-0d1b-72ed-9a2a-ead71f4c0c4e', 'user_message', 'user', 1795409907011799, NULL, '{"type":"user_message","items":[{"content_type":"text","content":"hello"}],"by":"alice"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0d1b-72ed-9a2a-ead5492b4328', 3, '01a206c5-0d1b-72ed-9a2a-ead5492b4328', 3, '01a206c5-0d47-733f-930f-352c2aed5e21', 'assistant_message', 'assistant', 1795409907042946, NULL, '{"type":"assistant_message","turn":1,"text":"Done.","tool_calls":[],"finish_reason":"stop","usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11},"raw":{"content":"Done.","role":"assistant"}}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0d1b-72ed-9a2a-ead5492b4328', 4, '01a206c5-0d1b-72ed-9a2a-ead5492b4328', 4, '01a206c5-0d47-733f-930f-352c2aed5e21', 'task_status', 'system', 1795409907042946, NULL, '{"type":"task_status","status":"Completed","output":"Done."}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0dec-719f-9a7b-f172531921f5', 1, '01a206c5-0dec-719f-9a7b-f172531921f5', 1, '01a206c5-0ded-759f-8e2d-9d3757aa9071', 'task_status', 'system', 1795409907182659, NULL, '{"type":"task_status","status":"Running"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0dec-719f-9a7b-f172531921f5', 2, '01a206c5-0dec-719f-9a7b-f172531921f5', 2, '01a206c5-0ded-759f-8e2d-9d3757aa9071', 'user_message', 'user', 1795409907182659, NULL, '{"type":"user_message","items":[{"content_type":"text","content":"refund the order"}],"by":"alice"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0dec-719f-9a7b-f172531921f5', 3, '01a206c5-0dec-719f-9a7b-f172531921f5', 3, '01a206c5-0dfa-7089-a6d5-d18cb469b258', 'assistant_message', 'assistant', 1795409907195978, NULL, '{"type":"assistant_message","turn":1,"text":null,"tool_calls":[{"tool_call_id":"01a206c5-0df3-71f1-9da7-530ea440913e","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","provider_id":"call_0"}],"finish_reason":"tool_calls","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15},"raw":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"amount\":120,\"order\":17}","name":"refund_payment"},"id":"call_0","type":"function"}]}}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0dec-719f-9a7b-f172531921f5', 4, '01a206c5-0dec-719f-9a7b-f172531921f5', 4, '01a206c5-0dfa-7089-a6d5-d18cb469b258', 'judged', 'system', 1795409907195978, NULL, '{"type":"judged","tool_call_id":"01a206c5-0df3-71f1-9da7-530ea440913e","verdict":"hold","rule":"held","reason":null,"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"effect":"once","performer":"http"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0dec-719f-9a7b-f172531921f5', 5, '01a206c5-0dec-719f-9a7b-f172531921f5', 5, '01a206c5-0dfa-7089-a6d5-d18cb469b258', 'intervention_requested', 'assistant', 1795409907195978, '01a206c5-0dfa-7089-a6d5-d18b2c37c296', '{"type":"intervention_requested","request_id":"01a206c5-0dfa-7089-a6d5-d18b2c37c296","kind":"approval","pending_tool_calls":[{"tool_call_id":"01a206c5-0df3-71f1-9da7-530ea440913e","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","effect":"once","target":"POST builtin:refunds","address":{"text":"POST builtin:refunds/refund_payment","seal":"sha256:47f2523640fa4ada3850d72bb37472331d75cb6508d56093cc1482840a175f75"},"summary":"refund_payment","needs_decision":true,"verdict":"hold","rule":"held","reason":null,"parameters":{"properties":{"amount":{"type":"number"},"order":{"type":"integer"}},"required":["order","amount"],"type":"object"},"digest":"sha256:4f5e6ae057b8c9ca33d05d4b7d357db8cd51f67a1c528296cc178820c4a468d6","definition":"sha256:fa7f22884f30b6aabad019de06ef065468e3d41fae0c98c2444e388ee0fcea62"}],"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"digest":"sha256:e3bc48aa47c47bf8f3f7586c19772063dffb6e8ef38da5cafca09f0e9006de46","seal":"sha256:ca9b10684546d803f03042319bb36282f8f1e350d8a73cc8fc138cd414d6132c"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0dec-719f-9a7b-f172531921f5', 6, '01a206c5-0dec-719f-9a7b-f172531921f5', 6, '01a206c5-0dfa-7089-a6d5-d18cb469b258', 'task_status', 'system', 1795409907195978, NULL, '{"type":"task_status","status":"Paused"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0eaa-740e-8baa-ed90979c9b18', 1, '01a206c5-0eaa-740e-8baa-ed90979c9b18', 1, '01a206c5-0eaa-740e-8baa-ed922c389292', 'task_status', 'system', 1795409907371458, NULL, '{"type":"task_status","status":"Running"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0eaa-740e-8baa-ed90979c9b18', 2, '01a206c5-0eaa-740e-8baa-ed90979c9b18', 2, '01a206c5-0eaa-740e-8baa-ed922c389292', 'user_message', 'user', 1795409907371458, NULL, '{"type":"user_message","items":[{"content_type":"text","content":"ask me"}],"by":"alice"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0eaa-740e-8baa-ed90979c9b18', 3, '01a206c5-0eaa-740e-8baa-ed90979c9b18', 3, '01a206c5-0eae-72c7-bdd6-71d59b51e4ff', 'assistant_message', 'assistant', 1795409907374669, NULL, '{"type":"assistant_message","turn":1,"text":null,"tool_calls":[{"tool_call_id":"01a206c5-0ead-76b5-af8a-cb4a500f3738","name":"request_human_guidance","arguments_text":"{\"question\":\"Which order?\"}","provider_id":"call_0"}],"finish_reason":"tool_calls","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15},"raw":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"question\":\"Which order?\"}","name":"request_human_guidance"},"id":"call_0","type":"function"}]}}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0eaa-740e-8baa-ed90979c9b18', 4, '01a206c5-0eaa-740e-8baa-ed90979c9b18', 4, '01a206c5-0eae-72c7-bdd6-71d59b51e4ff', 'judged', 'system', 1795409907374669, NULL, '{"type":"judged","tool_call_id":"01a206c5-0ead-76b5-af8a-cb4a500f3738","verdict":"human","rule":"asked","reason":null,"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"effect":"read_only","performer":"human"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0eaa-740e-8baa-ed90979c9b18', 5, '01a206c5-0eaa-740e-8baa-ed90979c9b18', 5, '01a206c5-0eae-72c7-bdd6-71d59b51e4ff', 'intervention_requested', 'assistant', 1795409907374669, '01a206c5-0ead-76b5-af8a-cb4b3442dced', '{"type":"intervention_requested","request_id":"01a206c5-0ead-76b5-af8a-cb4b3442dced","kind":"guidance","pending_tool_calls":[{"tool_call_id":"01a206c5-0ead-76b5-af8a-cb4a500f3738","name":"request_human_guidance","arguments_text":"{\"question\":\"Which order?\"}","effect":"read_only","target":"human","summary":"request_human_guidance","needs_decision":true,"verdict":"human","rule":"asked","reason":null,"parameters":{"additionalProperties":false,"properties":{"attempted_approaches":{"description":"What you have tried already.","items":{"type":"string"},"type":["array","string"]},"context":{"description":"What one has to know to answer it.","type":"string"},"form":{"additionalProperties":true,"description":"JSON Schema of the answer, if a text will not do: an object with 1 to 20 `properties`, each of type string, number, integer or boolean, or an `enum` of strings. Further keywords: `title`, `description`, `default`, `minLength`, `maxLength`, `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `format` (email, uri, date), and `required`.","type":"object"},"options":{"description":"Answers to choose from, if there are some.","items":{"type":"string"},"type":"array"},"question":{"description":"The question, so that somebody who has not followed the conversation understands it.","minLength":1,"type":"string"}},"required":["question"],"type":"object"},"digest":"sha256:d7ed5954790bc3e9df5a7d04b94ce415a83e2389f99ed3e8613a826fd41d87d2","definition":"sha256:2c08db8368c48f3a141afe95764ec47e89ee550e673cdce0e7b2aaafcbb28683"}],"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"digest":"sha256:ef1de9af53fcb67a6ba1a978b45012da23f5849f1b04c5074efbb0a76af96b88","question":"Which order?","form":{"additionalProperties":false,"properties":{"answer":{"type":"string"}},"required":["answer"],"type":"object"},"seal":"sha256:386dca841d232751342dae56b900211a43d6cfda23a8230382a7ce7382df3ef6"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0eaa-740e-8baa-ed90979c9b18', 6, '01a206c5-0eaa-740e-8baa-ed90979c9b18', 6, '01a206c5-0eae-72c7-bdd6-71d59b51e4ff', 'task_status', 'system', 1795409907374669, NULL, '{"type":"task_status","status":"Paused"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 1, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 1, '01a206c5-0f3d-74e8-b7fe-1eaae341caf4', 'task_status', 'system', 1795409907519073, NULL, '{"type":"task_status","status":"Running"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 2, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 2, '01a206c5-0f3d-74e8-b7fe-1eaae341caf4', 'user_message', 'user', 1795409907519073, NULL, '{"type":"user_message","items":[{"content_type":"text","content":"refund again"}],"by":"alice"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 3, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 3, '01a206c5-0f43-71e4-a734-a75d6f6a5566', 'assistant_message', 'assistant', 1795409907526013, NULL, '{"type":"assistant_message","turn":1,"text":null,"tool_calls":[{"tool_call_id":"01a206c5-0f43-71e4-a734-a75bfa01e7ef","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","provider_id":"call_0"}],"finish_reason":"tool_calls","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15},"raw":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"amount\":120,\"order\":17}","name":"refund_payment"},"id":"call_0","type":"function"}]}}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 4, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 4, '01a206c5-0f43-71e4-a734-a75d6f6a5566', 'judged', 'system', 1795409907526013, NULL, '{"type":"judged","tool_call_id":"01a206c5-0f43-71e4-a734-a75bfa01e7ef","verdict":"hold","rule":"held","reason":null,"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"effect":"once","performer":"http"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 5, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 5, '01a206c5-0f43-71e4-a734-a75d6f6a5566', 'intervention_requested', 'assistant', 1795409907526013, '01a206c5-0f43-71e4-a734-a75c77ac4902', '{"type":"intervention_requested","request_id":"01a206c5-0f43-71e4-a734-a75c77ac4902","kind":"approval","pending_tool_calls":[{"tool_call_id":"01a206c5-0f43-71e4-a734-a75bfa01e7ef","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","effect":"once","target":"POST builtin:refunds","address":{"text":"POST builtin:refunds/refund_payment","seal":"sha256:084b5e3b1a01d8d044b2bd773d4520e7e12698f0807bba24abace7754c390e6e"},"summary":"refund_payment","needs_decision":true,"verdict":"hold","rule":"held","reason":null,"parameters":{"properties":{"amount":{"type":"number"},"order":{"type":"integer"}},"required":["order","amount"],"type":"object"},"digest":"sha256:8fa6bc5b3241c3818e9148c8475653136f0a60e91287f780238dc07c78d7e2c4","definition":"sha256:fa7f22884f30b6aabad019de06ef065468e3d41fae0c98c2444e388ee0fcea62"}],"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"digest":"sha256:eac9d25d9c3f0ef430d46cfc7593fa263735a7fac26c2c2c880d7ee6306c0f29","seal":"sha256:b76da419f13bdaefe07d12d2e23fe9c3c5fffc8617554975e056e0f80c443c62"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 6, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 6, '01a206c5-0f43-71e4-a734-a75d6f6a5566', 'task_status', 'system', 1795409907526013, NULL, '{"type":"task_status","status":"Paused"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 7, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 7, '01a206c5-0fce-7781-948a-21ac6aa91169', 'decision', 'human', 1795409907669203, '01a206c5-0f43-71e4-a734-a75c77ac4902', '{"type":"decision","request_id":"01a206c5-0f43-71e4-a734-a75c77ac4902","decision":{"action":"reject","by":"alice","reason":"no","then":"cancel","decisions":{"01a206c5-0f43-71e4-a734-a75bfa01e7ef":{"action":"reject","reason":"no"}},"closes":true}}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 8, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 8, '01a206c5-0fce-7781-948a-21ac6aa91169', 'tool_result', 'tool', 1795409907669203, NULL, '{"type":"tool_result","tool_call_id":"01a206c5-0f43-71e4-a734-a75bfa01e7ef","name":"refund_payment","outcome":"rejected","content":"A human rejected this call; it was not run. Reason: no"}');
INSERT INTO public.agent_task_item VALUES ('01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 9, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 9, '01a206c5-0fce-7781-948a-21ac6aa91169', 'task_status', 'system', 1795409907669203, NULL, '{"type":"task_status","status":"Canceled"}');

INSERT INTO public.agent_version VALUES ('sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a', '{"agent":{"description":"A clerk.","human":["guidance"],"model":"main","tools":["refund_payment"]},"name":"clerk","sub_agents":{},"tools":{"refund_payment":{"description":"","digest":"sha256:ef1129ee587f32587eaff077effb3854e1af9d5e6d720a6028d9cec32a0b1322","parameters":{"properties":{"amount":{"type":"number"},"order":{"type":"integer"}},"required":["order","amount"],"type":"object"}}}}', 1795409904155269);

INSERT INTO public.database_identity VALUES (1, '7711226814933758145/00000001/16385', NULL);

INSERT INTO public.decision VALUES ('default', 'alice', '01a206c5-0f43-71e4-a734-a75c77ac4902', '01a206c5-0f43-71e4-a734-a75bfa01e7ef', 'reject', true, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 7, 1795409907669203);

INSERT INTO public.idempotency VALUES ('default', 'alice', 'POST /v1/tasks', 'once-only', 'dbf9b1d34d5b10631d0ac3fb2aa98220263ccfb47ef4b30b9be9172cdb8ce7a7', '01a206c5-0dec-719f-9a7b-f172531921f5', NULL, 1795409907182659, 'alice');

INSERT INTO public.intervention_request VALUES ('01a206c5-0dfa-7089-a6d5-d18b2c37c296', '01a206c5-0dec-719f-9a7b-f172531921f5', 5, '01a206c5-0dec-719f-9a7b-f172531921f5', 'default', 'approval', 'pending', 1, '01a206c5-0df3-71f1-9da7-530ea440913e', 1795409907195978, NULL);
INSERT INTO public.intervention_request VALUES ('01a206c5-0ead-76b5-af8a-cb4b3442dced', '01a206c5-0eaa-740e-8baa-ed90979c9b18', 5, '01a206c5-0eaa-740e-8baa-ed90979c9b18', 'default', 'guidance', 'pending', 1, '01a206c5-0ead-76b5-af8a-cb4a500f3738', 1795409907374669, NULL);
INSERT INTO public.intervention_request VALUES ('01a206c5-0f43-71e4-a734-a75c77ac4902', '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 5, '01a206c5-0f3d-74e8-b7fe-1ea8027d5342', 'default', 'approval', 'resumed', 1, '01a206c5-0f43-71e4-a734-a75bfa01e7ef', 1795409907526013, NULL);

INSERT INTO public.request_approver VALUES ('default', 'owner', 'alice', '01a206c5-0dfa-7089-a6d5-d18b2c37c296');
INSERT INTO public.request_approver VALUES ('default', 'owner', 'alice', '01a206c5-0ead-76b5-af8a-cb4b3442dced');
INSERT INTO public.request_approver VALUES ('default', 'owner', 'alice', '01a206c5-0f43-71e4-a734-a75c77ac4902');

ALTER TABLE ONLY public._sqlx_migrations
    ADD CONSTRAINT _sqlx_migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY public.agent_task_item
    ADD CONSTRAINT agent_task_item_pkey PRIMARY KEY (task_id, seq);

ALTER TABLE ONLY public.agent_task
    ADD CONSTRAINT agent_task_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY public.agent_version
    ADD CONSTRAINT agent_version_pkey PRIMARY KEY (digest);

ALTER TABLE ONLY public.browser_session
    ADD CONSTRAINT browser_session_pkey PRIMARY KEY (token_sha256);

ALTER TABLE ONLY public.credential
    ADD CONSTRAINT credential_pkey PRIMARY KEY (task_id, name);

ALTER TABLE ONLY public.database_identity
    ADD CONSTRAINT database_identity_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.decision
    ADD CONSTRAINT decision_pkey PRIMARY KEY (tenant, user_id, request_id, tool_call_id);

ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (tenant, user_id, path, key);

ALTER TABLE ONLY public.intervention_request
    ADD CONSTRAINT intervention_request_pkey PRIMARY KEY (request_id);

ALTER TABLE ONLY public.request_approver
    ADD CONSTRAINT request_approver_pkey PRIMARY KEY (tenant, kind, name, request_id);

ALTER TABLE ONLY public.user_spelling
    ADD CONSTRAINT user_spelling_pkey PRIMARY KEY (tenant, spelling);

CREATE UNIQUE INDEX agent_task_call ON public.agent_task USING btree (parent_call_id) WHERE (parent_call_id IS NOT NULL);

CREATE INDEX agent_task_children ON public.agent_task USING btree (root_task_id, parent_task_id) WHERE (parent_task_id IS NOT NULL);

CREATE INDEX agent_task_claimable ON public.agent_task USING btree (task_id) WHERE ((phase <> 'parked'::text) OR (wake_at IS NOT NULL));

CREATE UNIQUE INDEX agent_task_item_event ON public.agent_task_item USING btree (root_task_id, event_number);

CREATE INDEX agent_task_item_request ON public.agent_task_item USING btree (request_id) WHERE (request_id IS NOT NULL);

CREATE INDEX agent_task_owner ON public.agent_task USING btree (tenant, user_id, task_id) WHERE (parent_task_id IS NULL);

CREATE INDEX browser_session_over ON public.browser_session USING btree (expires_at);

CREATE INDEX credential_over ON public.credential USING btree (expires_at) WHERE (expires_at IS NOT NULL);

CREATE UNIQUE INDEX decision_final ON public.decision USING btree (request_id, tool_call_id) WHERE final;

CREATE UNIQUE INDEX idempotency_person ON public.idempotency USING btree (tenant, person, path, key) WHERE (person IS NOT NULL);

CREATE INDEX idempotency_spent ON public.idempotency USING btree (created_at) WHERE (request_id IS NULL);

CREATE INDEX intervention_request_deadline ON public.intervention_request USING btree (expires_at) WHERE ((status = 'pending'::text) AND (expires_at IS NOT NULL));

CREATE INDEX intervention_request_open ON public.intervention_request USING btree (tenant, request_id) WHERE (status = 'pending'::text);

CREATE INDEX intervention_request_root ON public.intervention_request USING btree (root_task_id);

CREATE INDEX user_spelling_folded ON public.user_spelling USING btree (tenant, folded);

CREATE INDEX user_spelling_unfolded ON public.user_spelling USING btree (spelling) WHERE (folded IS NULL);

CREATE TRIGGER agent_task_end BEFORE UPDATE ON public.agent_task FOR EACH ROW WHEN (((old.status = ANY (ARRAY['Completed'::text, 'Failed'::text, 'Canceled'::text])) AND (new.status <> old.status) AND ((new.status <> 'Running'::text) OR (new.last_seq <= old.last_seq)))) EXECUTE FUNCTION public.agent_task_refuse_end();

CREATE TRIGGER agent_task_spelling AFTER INSERT ON public.agent_task FOR EACH ROW WHEN (public.user_spelling_changes(new.user_id)) EXECUTE FUNCTION public.user_spelling_keep('user_id');

CREATE TRIGGER decision_spelling AFTER INSERT ON public.decision FOR EACH ROW WHEN (public.user_spelling_changes(new.user_id)) EXECUTE FUNCTION public.user_spelling_keep('user_id');

CREATE TRIGGER idempotency_spelling AFTER INSERT ON public.idempotency FOR EACH ROW WHEN (public.user_spelling_changes(new.user_id)) EXECUTE FUNCTION public.user_spelling_keep('user_id');

CREATE TRIGGER intervention_request_end BEFORE UPDATE ON public.intervention_request FOR EACH ROW WHEN (((old.status <> 'pending'::text) AND (new.status <> old.status) AND (NOT ((old.status = 'responded'::text) AND (new.status = 'resumed'::text))))) EXECUTE FUNCTION public.intervention_request_refuse_end();

CREATE TRIGGER request_approver_spelling AFTER INSERT ON public.request_approver FOR EACH ROW WHEN (((new.kind <> 'group'::text) AND public.user_spelling_changes(new.name))) EXECUTE FUNCTION public.user_spelling_keep('name');

ALTER TABLE ONLY public.credential
    ADD CONSTRAINT credential_task_id_fkey FOREIGN KEY (task_id) REFERENCES public.agent_task(task_id);

ALTER TABLE ONLY public.decision
    ADD CONSTRAINT decision_request_id_fkey FOREIGN KEY (request_id) REFERENCES public.intervention_request(request_id);

ALTER TABLE ONLY public.intervention_request
    ADD CONSTRAINT intervention_request_task_id_fkey FOREIGN KEY (task_id) REFERENCES public.agent_task(task_id);

ALTER TABLE ONLY public.request_approver
    ADD CONSTRAINT request_approver_request_id_fkey FOREIGN KEY (request_id) REFERENCES public.intervention_request(request_id);

