PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO _sqlx_migrations VALUES(1,'foundation','2026-11-22 20:58:09',1,X'fa2e62f72b9aa37c235613263a8a5480e8a43ac81795f3080367ebbe249e9ecceccdd4651f02544787c85dbbf1ebf0c9',2940112);
INSERT INTO _sqlx_migrations VALUES(2,'identity','2026-11-22 20:58:09',1,X'13af725de3a4cd1a2227a37e63e2ec3369bfd021be1aacfda8cc33f9a3b88735f9c67c38e31df90670e4f42089c32f2f',1141792);
INSERT INTO _sqlx_migrations VALUES(3,'spent keys','2026-11-22 20:58:09',1,X'9dd257b1af7f8d68f74e17e6254747017cb66f13fd7604945f1dd19ab8c5aa32bf70321e459a771e052926c121e13e18',735849);
INSERT INTO _sqlx_migrations VALUES(4,'browser session','2026-11-22 20:58:09',1,X'8aac1d7a2b50e777f8e998f7339fac33f78d6f43d6679ba8c6b7d6a81d0d81c02a2f259a20b4226ba5491ab49b473961',998102);
INSERT INTO _sqlx_migrations VALUES(5,'credential','2026-11-22 20:58:09',1,X'07d03db054487475a81eaa3b8ed201aad5aee37fbcc1b4e606d4f4ebe88ff443dd54bdaeb6c0786ca57aba41677b83ee',1000982);
INSERT INTO _sqlx_migrations VALUES(6,'sub agent','2026-11-22 20:58:09',1,X'345b93f5836a722a095ab2270fc460c2b7665697a200c48431eef5e729b29fa7b793cf75acf3bf1672a9e833fe2d07da',744327);
INSERT INTO _sqlx_migrations VALUES(7,'fruitless','2026-11-22 20:58:09',1,X'5e15eb6c9ae8df1fc610e34d7195f4e2e6ffa94cd1557f7e2c2f792e6eaade2165843f2c1dd1e9a72889a461abda50ae',6571604);
INSERT INTO _sqlx_migrations VALUES(8,'user spelling','2026-11-22 20:58:09',1,X'6c4937cbae1d7777ff7170c0a40117bf346b34280fe338c45eff1ee8abbfe9c3937c041c5b338338622c6d533c8197a4',2263913);
INSERT INTO _sqlx_migrations VALUES(9,'stored spellings','2026-11-22 20:58:09',1,X'80b9cee10ea2e12550eda9777de9bcdd665042056d6e90743aedbbe40a353e0c28e284359483129f875e94c1106c95df',909416);
CREATE TABLE agent_version (
    digest text not null primary key,
    definition text not null,
    created_at integer not null
) strict;
INSERT INTO agent_version VALUES('sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a','{"agent":{"description":"A clerk.","human":["guidance"],"model":"main","tools":["refund_payment"]},"name":"clerk","sub_agents":{},"tools":{"refund_payment":{"description":"","digest":"sha256:ef1129ee587f32587eaff077effb3854e1af9d5e6d720a6028d9cec32a0b1322","parameters":{"properties":{"amount":{"type":"number"},"order":{"type":"integer"}},"required":["order","amount"],"type":"object"}}}}',1795381089844714);
CREATE TABLE agent_task (
    task_id blob not null primary key,
    root_task_id blob not null,
    parent_task_id blob,
    parent_call_id blob,
    tenant text not null,
    user_id text not null,
    session_id text not null,
    agent text not null,
    agent_version text not null,
    agent_path text not null,
    metadata text not null,
    status text not null check (status in ('Running', 'Paused', 'Completed', 'Failed', 'Canceled')),
    status_seq integer not null,
    version integer not null,
    last_seq integer not null,
    next_event integer not null,
    busy integer not null,
    open_requests integer not null,
    prompt_tokens integer not null,
    completion_tokens integer not null,
    total_tokens integer not null,
    model_calls integer not null,
    phase text not null check (phase in ('queued', 'leased', 'parked')),
    lease_owner text,
    lease_until integer,
    wake_at integer,
    takeovers integer not null,
    created_at integer not null,
    updated_at integer not null, begun integer not null default 0 check (begun in (0, 1)), fruitless integer not null default 0,
    constraint agent_task_counters check (busy >= 0 and open_requests >= 0),
    constraint agent_task_paused check (status <> 'Paused' or (open_requests > 0 and busy = 0)),
    constraint agent_task_lease check ((phase = 'leased') = (lease_owner is not null and lease_until is not null)),
    constraint agent_task_parent check ((parent_task_id is null) = (root_task_id = task_id))
) strict;
INSERT INTO agent_task VALUES(X'01a2050d5c06751d9f291d838c490f5d',X'01a2050d5c06751d9f291d838c490f5d',NULL,NULL,'default','alice','01a2050d-5c06-751d-9f29-1d8405f9baf1','clerk','sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a','["clerk"]','{}','Completed',4,2,4,4,0,0,10,1,11,1,'parked',NULL,NULL,NULL,0,1795381091335867,1795381091344077,0,0);
INSERT INTO agent_task VALUES(X'01a2050d5c3b7746849d382da2df7325',X'01a2050d5c3b7746849d382da2df7325',NULL,NULL,'default','alice','01a2050d-5c3b-7746-849d-382e44385f4e','clerk','sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a','["clerk"]','{}','Paused',6,2,6,6,0,1,10,5,15,1,'parked',NULL,NULL,NULL,0,1795381091387776,1795381091394338,0,0);
INSERT INTO agent_task VALUES(X'01a2050d5c8474ca8978dbb3de864539',X'01a2050d5c8474ca8978dbb3de864539',NULL,NULL,'default','alice','01a2050d-5c84-74ca-8978-dbb4540bd096','clerk','sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a','["clerk"]','{}','Paused',6,2,6,6,0,1,10,5,15,1,'parked',NULL,NULL,NULL,0,1795381091461705,1795381091465575,0,0);
INSERT INTO agent_task VALUES(X'01a2050d5ca67682997e291e24ea6fd8',X'01a2050d5ca67682997e291e24ea6fd8',NULL,NULL,'default','alice','01a2050d-5ca6-7682-997e-291fc497a0c7','clerk','sha256:5f000d1b2283772ce711b41edd99dd8546fae9908931627180bfcdd79e152c9a','["clerk"]','{}','Canceled',9,3,9,9,0,0,10,5,15,1,'parked',NULL,NULL,NULL,0,1795381091495382,1795381091892003,0,0);
CREATE TABLE agent_task_item (
    task_id blob not null,
    seq integer not null,
    root_task_id blob not null,
    event_number integer not null,
    change_id blob not null,
    type text not null,
    role text not null,
    at integer not null,
    request_id blob,
    body text not null,
    primary key (task_id, seq)
) strict;
INSERT INTO agent_task_item VALUES(X'01a2050d5c06751d9f291d838c490f5d',1,X'01a2050d5c06751d9f291d838c490f5d',1,X'01a2050d5c06751d9f291d856b3927d0','task_status','system',1795381091335867,NULL,'{"type":"task_status","status":"Running"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c06751d9f291d838c490f5d',2,X'01a2050d5c06751d9f291d838c490f5d',2,X'01a2050d5c06751d9f291d856b3927d0','user_message','user',1795381091335867,NULL,'{"type":"user_message","items":[{"content_type":"text","content":"greet"}],"by":"alice"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c06751d9f291d838c490f5d',3,X'01a2050d5c06751d9f291d838c490f5d',3,X'01a2050d5c0f76718b1eeaf38be8d728','assistant_message','assistant',1795381091344077,NULL,'{"type":"assistant_message","turn":1,"text":"Done.","tool_calls":[],"finish_reason":"stop","usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11},"raw":{"content":"Done.","role":"assistant"}}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c06751d9f291d838c490f5d',4,X'01a2050d5c06751d9f291d838c490f5d',4,X'01a2050d5c0f76718b1eeaf38be8d728','task_status','system',1795381091344077,NULL,'{"type":"task_status","status":"Completed","output":"Done."}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c3b7746849d382da2df7325',1,X'01a2050d5c3b7746849d382da2df7325',1,X'01a2050d5c3b7746849d382f4ac4992a','task_status','system',1795381091387776,NULL,'{"type":"task_status","status":"Running"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c3b7746849d382da2df7325',2,X'01a2050d5c3b7746849d382da2df7325',2,X'01a2050d5c3b7746849d382f4ac4992a','user_message','user',1795381091387776,NULL,'{"type":"user_message","items":[{"content_type":"text","content":"refund the order"}],"by":"alice"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c3b7746849d382da2df7325',3,X'01a2050d5c3b7746849d382da2df7325',3,X'01a2050d5c41743687ed868716c5fb47','assistant_message','assistant',1795381091394338,NULL,'{"type":"assistant_message","turn":1,"text":null,"tool_calls":[{"tool_call_id":"01a2050d-5c3e-7030-97f0-c5b37863c5b3","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","provider_id":"call_0"}],"finish_reason":"tool_calls","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15},"raw":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"amount\":120,\"order\":17}","name":"refund_payment"},"id":"call_0","type":"function"}]}}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c3b7746849d382da2df7325',4,X'01a2050d5c3b7746849d382da2df7325',4,X'01a2050d5c41743687ed868716c5fb47','judged','system',1795381091394338,NULL,'{"type":"judged","tool_call_id":"01a2050d-5c3e-7030-97f0-c5b37863c5b3","verdict":"hold","rule":"held","reason":null,"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"effect":"once","performer":"http"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c3b7746849d382da2df7325',5,X'01a2050d5c3b7746849d382da2df7325',5,X'01a2050d5c41743687ed868716c5fb47','intervention_requested','assistant',1795381091394338,X'01a2050d5c41743687ed8686946c37f0','{"type":"intervention_requested","request_id":"01a2050d-5c41-7436-87ed-8686946c37f0","kind":"approval","pending_tool_calls":[{"tool_call_id":"01a2050d-5c3e-7030-97f0-c5b37863c5b3","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","effect":"once","target":"POST builtin:refunds","address":{"text":"POST builtin:refunds/refund_payment","seal":"sha256:30b11d04e1865b644b86cfb80a89143a887860ca261fae8ea4645614d3294859"},"summary":"refund_payment","needs_decision":true,"verdict":"hold","rule":"held","reason":null,"parameters":{"properties":{"amount":{"type":"number"},"order":{"type":"integer"}},"required":["order","amount"],"type":"object"},"digest":"sha256:6735070ad7fead958113dcd568fb0fb7ef30d64eec54c4d3479fd3712f1f137b","definition":"sha256:fa7f22884f30b6aabad019de06ef065468e3d41fae0c98c2444e388ee0fcea62"}],"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"digest":"sha256:51e608edec25946dc0d112d2d6e904763b9fd8ccdf9dc54854f5451c9b72f68e","seal":"sha256:8f9fede933e77eae378869f7365b72addd57e2f727040d900434e52ae9025caf"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c3b7746849d382da2df7325',6,X'01a2050d5c3b7746849d382da2df7325',6,X'01a2050d5c41743687ed868716c5fb47','task_status','system',1795381091394338,NULL,'{"type":"task_status","status":"Paused"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c8474ca8978dbb3de864539',1,X'01a2050d5c8474ca8978dbb3de864539',1,X'01a2050d5c8576db93b91f379aa36c4c','task_status','system',1795381091461705,NULL,'{"type":"task_status","status":"Running"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c8474ca8978dbb3de864539',2,X'01a2050d5c8474ca8978dbb3de864539',2,X'01a2050d5c8576db93b91f379aa36c4c','user_message','user',1795381091461705,NULL,'{"type":"user_message","items":[{"content_type":"text","content":"ask me"}],"by":"alice"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c8474ca8978dbb3de864539',3,X'01a2050d5c8474ca8978dbb3de864539',3,X'01a2050d5c8874cca1ad53bb30f2e7c3','assistant_message','assistant',1795381091465575,NULL,'{"type":"assistant_message","turn":1,"text":null,"tool_calls":[{"tool_call_id":"01a2050d-5c87-7741-9718-64af239256e7","name":"request_human_guidance","arguments_text":"{\"question\":\"Which order?\"}","provider_id":"call_0"}],"finish_reason":"tool_calls","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15},"raw":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"question\":\"Which order?\"}","name":"request_human_guidance"},"id":"call_0","type":"function"}]}}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c8474ca8978dbb3de864539',4,X'01a2050d5c8474ca8978dbb3de864539',4,X'01a2050d5c8874cca1ad53bb30f2e7c3','judged','system',1795381091465575,NULL,'{"type":"judged","tool_call_id":"01a2050d-5c87-7741-9718-64af239256e7","verdict":"human","rule":"asked","reason":null,"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"effect":"read_only","performer":"human"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c8474ca8978dbb3de864539',5,X'01a2050d5c8474ca8978dbb3de864539',5,X'01a2050d5c8874cca1ad53bb30f2e7c3','intervention_requested','assistant',1795381091465575,X'01a2050d5c8874cca1ad53bab4c14dc4','{"type":"intervention_requested","request_id":"01a2050d-5c88-74cc-a1ad-53bab4c14dc4","kind":"guidance","pending_tool_calls":[{"tool_call_id":"01a2050d-5c87-7741-9718-64af239256e7","name":"request_human_guidance","arguments_text":"{\"question\":\"Which order?\"}","effect":"read_only","target":"human","summary":"request_human_guidance","needs_decision":true,"verdict":"human","rule":"asked","reason":null,"parameters":{"additionalProperties":false,"properties":{"attempted_approaches":{"description":"What you have tried already.","items":{"type":"string"},"type":["array","string"]},"context":{"description":"What one has to know to answer it.","type":"string"},"form":{"additionalProperties":true,"description":"JSON Schema of the answer, if a text will not do: an object with 1 to 20 `properties`, each of type string, number, integer or boolean, or an `enum` of strings. Further keywords: `title`, `description`, `default`, `minLength`, `maxLength`, `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `format` (email, uri, date), and `required`.","type":"object"},"options":{"description":"Answers to choose from, if there are some.","items":{"type":"string"},"type":"array"},"question":{"description":"The question, so that somebody who has not followed the conversation understands it.","minLength":1,"type":"string"}},"required":["question"],"type":"object"},"digest":"sha256:d691423d34188fca111720b779016ee05ef8e22d34a9908311ed2d96e3cc7e34","definition":"sha256:2c08db8368c48f3a141afe95764ec47e89ee550e673cdce0e7b2aaafcbb28683"}],"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"digest":"sha256:432eca9a000c6850b1b4d15971630f98df40ae094db4cdce8ab8c0f7463a75b8","question":"Which order?","form":{"additionalProperties":false,"properties":{"answer":{"type":"string"}},"required":["answer"],"type":"object"},"seal":"sha256:45a3a4ea875dd10c154b309fa8265bf666b0a3cc8275af3bba6f18e13a6fc73c"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5c8474ca8978dbb3de864539',6,X'01a2050d5c8474ca8978dbb3de864539',6,X'01a2050d5c8874cca1ad53bb30f2e7c3','task_status','system',1795381091465575,NULL,'{"type":"task_status","status":"Paused"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',1,X'01a2050d5ca67682997e291e24ea6fd8',1,X'01a2050d5ca67682997e29200affdda6','task_status','system',1795381091495382,NULL,'{"type":"task_status","status":"Running"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',2,X'01a2050d5ca67682997e291e24ea6fd8',2,X'01a2050d5ca67682997e29200affdda6','user_message','user',1795381091495382,NULL,'{"type":"user_message","items":[{"content_type":"text","content":"refund another order"}],"by":"alice"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',3,X'01a2050d5ca67682997e291e24ea6fd8',3,X'01a2050d5caa74708114050aef0e5bf4','assistant_message','assistant',1795381091498927,NULL,'{"type":"assistant_message","turn":1,"text":null,"tool_calls":[{"tool_call_id":"01a2050d-5ca9-7268-bd41-2d11b36adefa","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","provider_id":"call_0"}],"finish_reason":"tool_calls","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15},"raw":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"amount\":120,\"order\":17}","name":"refund_payment"},"id":"call_0","type":"function"}]}}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',4,X'01a2050d5ca67682997e291e24ea6fd8',4,X'01a2050d5caa74708114050aef0e5bf4','judged','system',1795381091498927,NULL,'{"type":"judged","tool_call_id":"01a2050d-5ca9-7268-bd41-2d11b36adefa","verdict":"hold","rule":"held","reason":null,"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"effect":"once","performer":"http"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',5,X'01a2050d5ca67682997e291e24ea6fd8',5,X'01a2050d5caa74708114050aef0e5bf4','intervention_requested','assistant',1795381091498927,X'01a2050d5caa747081140509394fd3e7','{"type":"intervention_requested","request_id":"01a2050d-5caa-7470-8114-0509394fd3e7","kind":"approval","pending_tool_calls":[{"tool_call_id":"01a2050d-5ca9-7268-bd41-2d11b36adefa","name":"refund_payment","arguments_text":"{\"amount\":120,\"order\":17}","effect":"once","target":"POST builtin:refunds","address":{"text":"POST builtin:refunds/refund_payment","seal":"sha256:5bdc3a3d8afea2e0aa0aa519ece05db073d25d75f82a004fb2f030e7af5381a6"},"summary":"refund_payment","needs_decision":true,"verdict":"hold","rule":"held","reason":null,"parameters":{"properties":{"amount":{"type":"number"},"order":{"type":"integer"}},"required":["order","amount"],"type":"object"},"digest":"sha256:d332fd221d4adebc240e773b3c3b7b23339e48e4e7f2ea3c225b3f1ad1dbe619","definition":"sha256:fa7f22884f30b6aabad019de06ef065468e3d41fae0c98c2444e388ee0fcea62"}],"terms":{"approvers":{"owner":true,"users":[],"groups":[],"required":1},"expires_in":null,"on_expiry":"continue","on_reject":"cancel","allow":["approve","reject","edit","respond"],"message":null},"digest":"sha256:2cab6346ce955f07372180b7b1f32158eebf3cc1d99f392971b59377e955d914","seal":"sha256:d6a667cd83cfa600d2bf3a58dd1eb32f513aaa775225e59d00b267e3dc44074d"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',6,X'01a2050d5ca67682997e291e24ea6fd8',6,X'01a2050d5caa74708114050aef0e5bf4','task_status','system',1795381091498927,NULL,'{"type":"task_status","status":"Paused"}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',7,X'01a2050d5ca67682997e291e24ea6fd8',7,X'01a2050d5e3371d892f2ba6bbeacb8e0','decision','human',1795381091892003,X'01a2050d5caa747081140509394fd3e7','{"type":"decision","request_id":"01a2050d-5caa-7470-8114-0509394fd3e7","decision":{"action":"reject","by":"alice","reason":"Not this one.","then":"cancel","decisions":{"01a2050d-5ca9-7268-bd41-2d11b36adefa":{"action":"reject","reason":"Not this one."}},"closes":true}}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',8,X'01a2050d5ca67682997e291e24ea6fd8',8,X'01a2050d5e3371d892f2ba6bbeacb8e0','tool_result','tool',1795381091892003,NULL,'{"type":"tool_result","tool_call_id":"01a2050d-5ca9-7268-bd41-2d11b36adefa","name":"refund_payment","outcome":"rejected","content":"A human rejected this call; it was not run. Reason: Not this one."}');
INSERT INTO agent_task_item VALUES(X'01a2050d5ca67682997e291e24ea6fd8',9,X'01a2050d5ca67682997e291e24ea6fd8',9,X'01a2050d5e3371d892f2ba6bbeacb8e0','task_status','system',1795381091892003,NULL,'{"type":"task_status","status":"Canceled"}');
CREATE TABLE intervention_request (
    request_id blob not null primary key,
    task_id blob not null references agent_task (task_id),
    seq integer not null,
    root_task_id blob not null,
    tenant text not null,
    kind text not null,
    status text not null check (status in ('pending', 'responded', 'resumed', 'expired', 'withdrawn')),
    required integer not null,
    call_id blob,
    created_at integer not null,
    expires_at integer
) strict;
INSERT INTO intervention_request VALUES(X'01a2050d5c41743687ed8686946c37f0',X'01a2050d5c3b7746849d382da2df7325',5,X'01a2050d5c3b7746849d382da2df7325','default','approval','pending',1,X'01a2050d5c3e703097f0c5b37863c5b3',1795381091394338,NULL);
INSERT INTO intervention_request VALUES(X'01a2050d5c8874cca1ad53bab4c14dc4',X'01a2050d5c8474ca8978dbb3de864539',5,X'01a2050d5c8474ca8978dbb3de864539','default','guidance','pending',1,X'01a2050d5c877741971864af239256e7',1795381091465575,NULL);
INSERT INTO intervention_request VALUES(X'01a2050d5caa747081140509394fd3e7',X'01a2050d5ca67682997e291e24ea6fd8',5,X'01a2050d5ca67682997e291e24ea6fd8','default','approval','resumed',1,X'01a2050d5ca97268bd412d11b36adefa',1795381091498927,NULL);
CREATE TABLE request_approver (
    tenant text not null,
    kind text not null check (kind in ('owner', 'user', 'group')),
    name text not null,
    request_id blob not null references intervention_request (request_id),
    primary key (tenant, kind, name, request_id)
) strict;
INSERT INTO request_approver VALUES('default','owner','alice',X'01a2050d5c41743687ed8686946c37f0');
INSERT INTO request_approver VALUES('default','owner','alice',X'01a2050d5c8874cca1ad53bab4c14dc4');
INSERT INTO request_approver VALUES('default','owner','alice',X'01a2050d5caa747081140509394fd3e7');
CREATE TABLE decision (
    tenant text not null,
    user_id text not null,
    request_id blob not null references intervention_request (request_id),
    tool_call_id blob not null,
    action text not null,
    final integer not null check (final in (0, 1)),
    task_id blob not null,
    seq integer not null,
    at integer not null,
    primary key (tenant, user_id, request_id, tool_call_id)
) strict;
INSERT INTO decision VALUES('default','alice',X'01a2050d5caa747081140509394fd3e7',X'01a2050d5ca97268bd412d11b36adefa','reject',1,X'01a2050d5ca67682997e291e24ea6fd8',7,1795381091892003);
CREATE TABLE idempotency (
    tenant text not null,
    user_id text not null,
    path text not null,
    key text not null,
    body_digest text not null,
    task_id blob not null,
    request_id blob,
    created_at integer not null, person text,
    primary key (tenant, user_id, path, key)
) strict;
INSERT INTO idempotency VALUES('default','alice','POST /v1/tasks','once-only','dbf9b1d34d5b10631d0ac3fb2aa98220263ccfb47ef4b30b9be9172cdb8ce7a7',X'01a2050d5c3b7746849d382da2df7325',NULL,1795381091387776,'alice');
CREATE TABLE database_identity (
    id integer not null primary key check (id = 1),
    identity text,
    doubted_at integer
) strict;
INSERT INTO database_identity VALUES(1,NULL,NULL);
CREATE TABLE browser_session (
    token_sha256 text not null primary key,
    binding text not null,
    expires_at integer not null
) strict;
CREATE TABLE credential (
    task_id blob not null references agent_task (task_id),
    name text not null,
    tenant text not null,
    root_task_id blob not null,
    request_id blob not null,
    key_id text not null,
    sealed text not null,
    created_at integer not null,
    expires_at integer,
    primary key (task_id, name)
) strict;
CREATE TABLE user_spelling (
    tenant text not null,
    spelling text not null,
    folded text,
    primary key (tenant, spelling)
) strict;
CREATE INDEX agent_task_owner on agent_task (tenant, user_id, task_id) where parent_task_id is null;
CREATE INDEX agent_task_children on agent_task (root_task_id, parent_task_id) where parent_task_id is not null;
CREATE INDEX agent_task_claimable on agent_task (task_id) where phase <> 'parked' or wake_at is not null;
CREATE TRIGGER agent_task_end before update on agent_task for each row
    when (old.status in ('Completed', 'Failed', 'Canceled') and new.status <> old.status
        and (new.status <> 'Running' or new.last_seq <= old.last_seq))
begin
    select raise(abort, 'an ended task changes only to Running, and only with a new item');
end;
CREATE UNIQUE INDEX agent_task_item_event on agent_task_item (root_task_id, event_number);
CREATE INDEX agent_task_item_request on agent_task_item (request_id) where request_id is not null;
CREATE INDEX intervention_request_open on intervention_request (tenant, request_id) where status = 'pending';
CREATE INDEX intervention_request_deadline on intervention_request (expires_at) where status = 'pending' and expires_at is not null;
CREATE INDEX intervention_request_root on intervention_request (root_task_id);
CREATE TRIGGER intervention_request_end before update on intervention_request for each row
    when (old.status <> 'pending' and new.status <> old.status and not (old.status = 'responded' and new.status = 'resumed'))
begin
    select raise(abort, 'a request goes from pending to one end and does not come back');
end;
CREATE UNIQUE INDEX decision_final on decision (request_id, tool_call_id) where final;
CREATE INDEX idempotency_spent on idempotency (created_at) where request_id is null;
CREATE INDEX browser_session_over on browser_session (expires_at);
CREATE INDEX credential_over on credential (expires_at) where expires_at is not null;
CREATE UNIQUE INDEX agent_task_call on agent_task (parent_call_id) where parent_call_id is not null;
CREATE INDEX user_spelling_folded on user_spelling (tenant, folded);
CREATE INDEX user_spelling_unfolded on user_spelling (spelling) where folded is null;
CREATE TRIGGER agent_task_spelling after insert on agent_task for each row
    when new.user_id glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.user_id) on conflict do nothing;
end;
CREATE TRIGGER request_approver_spelling after insert on request_approver for each row
    when new.kind <> 'group' and new.name glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.name) on conflict do nothing;
end;
CREATE TRIGGER decision_spelling after insert on decision for each row
    when new.user_id glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.user_id) on conflict do nothing;
end;
CREATE TRIGGER idempotency_spelling after insert on idempotency for each row
    when new.user_id glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.user_id) on conflict do nothing;
end;
CREATE UNIQUE INDEX idempotency_person on idempotency (tenant, person, path, key) where person is not null;
COMMIT;
