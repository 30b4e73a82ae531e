//! Tests of the script of the built-in demonstration.

use super::*;

#[tokio::test]
async fn demonstration_takes_time_only_while_it_is_watched() {
    for text in ["hello", "Please refund 120 for order 17"] {
        let (answer, told) = watched("builtin:refunds", None, vec![user(text)]).await;
        let (_, end) = told.last().unwrap();
        assert!((600..=1000).contains(&end.as_millis()), "{text}: {told:?}");
        assert!(told.len() > 5 && answer.text.is_some());
    }
    let clock = Arc::new(Quick::default());
    let asked = Arc::clone(&clock);
    let mut mistakes = Mistakes::default();
    let script = Scripted::load("demo", "builtin:refunds", asked, &mut mistakes).unwrap();
    say(&script, vec![user("hello")], 1).await;
    assert!(clock.0.lock().unwrap().is_empty());
}

/// Runs the demonstration with the user's text. A call of the tool `lookup_order` gets the result
/// `lookup`, and any other call gets the result `refund`. Returns the calls and the final text.
async fn demonstration(text: &str, lookup: &str, refund: &str) -> (Vec<String>, String) {
    let mut mistakes = Mistakes::default();
    let clock = Arc::new(Quick::default());
    let script = Scripted::load("demo", "builtin:refunds", clock, &mut mistakes);
    let script = script.unwrap_or_else(|| panic!("{mistakes:?}"));
    let mut messages = vec![user("hello"), user(text)];
    let mut asked = Vec::new();
    for number in 3.. {
        let answer = script
            .answer(&prompt(messages.clone(), number), &DiscardingSink)
            .await
            .unwrap();
        messages.push(turn(&answer));
        let Some(call) = answer.calls.first() else {
            return (asked, answer.text.unwrap_or_default());
        };
        asked.push(format!("{} {}", call.name, call.arguments_text));
        messages.push(result(
            &call.name,
            if call.name == "lookup_order" {
                lookup
            } else {
                refund
            },
        ));
    }
    unreachable!()
}

#[tokio::test]
async fn demonstration_refunds_an_order_and_reports_the_outcome() {
    let order = r#"{"order":17,"total":120.0,"status":"delivered"}"#;
    let calls = [
        r#"lookup_order {"order":17}"#,
        r#"refund_payment {"order":17,"amount":120}"#,
    ];
    for (text, refund, said) in [
        (
            "refund 120 for order 17",
            r#"{"refund":"r-1","paid":120}"#,
            "Done: 120 was paid back for order 17.",
        ),
        (
            "Please refund EUR 120 for my order #17!",
            "ok",
            "Done: 120 was paid back",
        ),
        (
            "About order 17: I want a refund of 120.",
            "ok",
            "Done: 120 was paid back",
        ),
        (
            "refund 120 for order 17",
            "Rejected by bob: wrong customer",
            "A person rejected",
        ),
        (
            "refund 120 for order 17",
            "The request expired: nobody answered in time",
            "No decision about the refund",
        ),
        (
            "refund 120 for order 17",
            "[A human changed the arguments of this call. It ran with: {\"order\":17,\"amount\":80}]\nok",
            "Done: a person changed the refund, and 80 was paid back.",
        ),
        (
            "refund 120 for order 17",
            "Denied by the rule no-refunds",
            "A rule does not allow",
        ),
        (
            "refund 120 for order 17",
            "The tool failed with status 500",
            "was not paid",
        ),
        (
            "refund 120 for order 17",
            "This call was not run: /amount: must be at most 100",
            "was not paid",
        ),
        (
            "refund 120 for order 17",
            "The outcome is unknown",
            "It is unknown whether",
        ),
    ] {
        let (asked, last) = demonstration(text, order, refund).await;
        assert_eq!(asked, calls, "{text}");
        assert!(last.contains(said), "{text} / {refund}: {last}");
    }
}

#[tokio::test]
async fn demonstration_asks_for_missing_information() {
    for (text, lookup, said) in [
        ("refund order 17", "", "How much of order 17"),
        ("hi there", "", "I am a scripted demonstration"),
        (
            "refund 5 for order 99",
            "404: no such order",
            "could not look the order up",
        ),
        (
            "refund 5 for order 99999999999999999999",
            "This call was not run: /order: must be at most 9007199254740991",
            "could not look the order up",
        ),
    ] {
        let (_, last) = demonstration(text, lookup, "").await;
        assert!(last.contains(said), "{text}: {last}");
    }
}
