//! Tests of rules that require more people than may approve.

use super::*;

#[test]
fn rule_that_no_approvers_can_satisfy_is_refused() {
    let web = AUTH.replace("eve,", "web, act_as: true,");
    let reader = AUTH.replace("bob, groups: [g],", "bob, groups: [g], may: [read],");
    let exact = AUTH.replace("auth: {", "auth: { user_ids: exact,");
    let two_tenants = AUTH.replace("eve,", "eve, tenant: other, groups: [g],");
    for (auth, approvers, required, satisfied) in [
        (AUTH, "", 1, true),
        (AUTH, "", 2, false),
        (AUTH, "users: [bob]", 1, true),
        (AUTH, "users: [bob]", 2, false),
        (AUTH, "users: [bob], owner: true", 2, true),
        (AUTH, "users: [bob, eve], groups: [g]", 2, true),
        (AUTH, "users: [bob, eve], groups: [g]", 3, false),
        (AUTH, "users: [bob, BOB, Eve], groups: [g]", 3, false),
        (AUTH, "users: [Bob, EVE]", 2, true),
        (&exact, "users: [Bob, eve]", 2, false),
        (&exact, "users: [bob, eve]", 2, true),
        (AUTH, "users: [zoe]", 1, false),
        (AUTH, "groups: [none]", 1, false),
        (AUTH, "groups: [g], owner: false", 1, true),
        (AUTH, "owner: false", 1, false),
        (&web, "users: [zoe]", 1, true),
        (&web, "users: [zoe]", 2, false),
        (&web, "users: [zoe, ZOE]", 2, false),
        (&web, "groups: [none]", 9, true),
        (&web, "", 2, false),
        (&reader, "users: [bob]", 1, false),
        (&two_tenants, "groups: [g]", 1, true),
        (&two_tenants, "groups: [g]", 2, false),
        ("", "groups: [none]", 3, true),
    ] {
        let comma = if approvers.is_empty() { "" } else { "," };
        let text = format!(
            "{BASE}{TOOL}{auth}policy: [{{ name: x, tools: [t], decide: hold, approvers: {{ {approvers}{comma} required: {required} }} }}]\n"
        );
        let found = read(&text).map(|_| ());
        assert_eq!(
            found.is_ok(),
            satisfied,
            "{auth} {approvers} {required}: {found:?}"
        );
    }
}
