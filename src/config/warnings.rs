//! Warns about probable mistakes that do not keep the service from starting. Invariant: no warning
//! quotes a value.

use super::Config;
use super::secret_values::database_passwords;
use super::tree::{Node, Origin};
use super::unexpanded::walk;
use crate::tool::credential::REFERENCE_START;
use crate::world::Mistakes;

/// Warns about secrets that stand literally in the file, and about texts such as `$NAME` that are
/// not expanded. Must run before `${…}` is expanded.
pub(crate) fn check_unexpanded(root: &Node, mistakes: &mut Mistakes) {
    walk(root, &mut Vec::new(), &mut |place, node| {
        let Some(text) = node.text() else { return };
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        if lacks_braces(text) {
            mistakes.warn(
                &place,
                "this value begins like a variable and is used as written: write `${NAME}` to expand it",
            );
        } else if let Some(header) = header(&place)
            && matches!(node.origin, Origin::File { .. })
            && holds_secret(header)
            && is_literal(text)
        {
            let detail = format!(
                "the value of `{header}` stands in the file: write `${{NAME}}` or `${{file:/path}}`"
            );
            mistakes.warn(&place, detail);
        } else if gives_access(&place)
            && matches!(node.origin, Origin::File { .. })
            && is_literal(text)
        {
            let detail = "this secret stands in the file: write `${NAME}` or `${file:/path}`";
            mistakes.warn(&place, detail);
        }
    });
}

/// Whether the value at this place is enough to get access: a secret, a password, a token, or a URL
/// to which anyone may post.
fn gives_access(place: &[&str]) -> bool {
    matches!(
        place,
        ["notify", "to", _, "webhook", "secrets", _]
            | ["notify", "mail", "password"]
            | ["mcp", _, "oauth", "client_secret"]
            | ["notify", "to", _, "slack", "token" | "url"]
            | ["notify", "to", _, "teams", "url"]
    )
}

/// Whether a text begins like `$NAME`, where `${NAME}` was probably meant.
fn lacks_braces(text: &str) -> bool {
    let name = text.strip_prefix('$').unwrap_or_default();
    let mut letters = name.bytes();
    letters
        .next()
        .is_some_and(|first| first.is_ascii_uppercase())
        && letters
            .next()
            .is_some_and(|next| next.is_ascii_uppercase() || next.is_ascii_digit() || next == b'_')
}

/// Whether `place` is the place of a header's value.
#[must_use]
pub(super) fn is_header(place: &[String]) -> bool {
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    header(&place).is_some()
}

/// Returns the name of the header if `place` is the place of a header's value.
fn header<'p>(place: &[&'p str]) -> Option<&'p str> {
    match place {
        ["models" | "mcp", _, "headers", name]
        | ["tools", _, "http", "headers", name]
        | ["notify", "to", _, "webhook", "headers", name] => Some(name),
        _ => None,
    }
}

/// Whether a header with this name usually holds a secret.
pub(super) fn holds_secret(header: &str) -> bool {
    let name = header.to_ascii_lowercase();
    name.ends_with("authorization")
        || name == "cookie"
        || name.ends_with("-key")
        || name.ends_with("-token")
}

/// Whether a text is a literal value: it is not empty, and has no `${…}` and no reference to a
/// credential.
fn is_literal(text: &str) -> bool {
    !text.is_empty() && !text.replace("$${", "").contains("${") && !text.contains(REFERENCE_START)
}

/// Warns about a database password in a flag. If the database is `SQLite`, also warns about each
/// shell tool, because the tool's commands could rewrite the database.
pub(crate) fn check_settings(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let url = config.database.url.reveal();
    let is_from_flag = root
        .at(&["database", "url"])
        .is_some_and(|node| matches!(node.origin, Origin::Flag(_)));
    if is_from_flag && !database_passwords(url).is_empty() {
        let detail = "the list of processes shows the password: pass it in the variable \
                      `HOLDPOINT_DATABASE__URL` or `PGPASSWORD`";
        mistakes.warn(&["database", "url"], detail);
    }
    if url.starts_with("sqlite:") {
        for name in config
            .tools
            .iter()
            .filter(|(_, tool)| tool.shell.is_some())
            .map(|(name, _)| name)
        {
            let detail = "a command runs as the user whom the embedded database belongs to, and can rewrite it: use Postgres";
            mistakes.warn(&["tools", name, "shell"], detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::environment::Environment;
    use crate::config::layers::Flags;
    use crate::config::{Source, load};

    fn warnings(text: &str, variables: &[(&str, &str)], database_url: Option<&str>) -> Vec<String> {
        let environment = Environment::new(variables, &[]);
        let flags = Flags {
            listen: None,
            database_url: database_url.map(str::to_owned),
        };
        let source = Source::File("h.yaml".into(), text.to_owned());
        let (_, report) = load(source, &environment, &flags, |config, mistakes| {
            config.store(true).check(mistakes);
        })
        .unwrap();
        report.warnings.iter().map(ToString::to_string).collect()
    }

    const BASE: &str =
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m } }\n";
    const BRACES: &str =
        "this value begins like a variable and is used as written: write `${NAME}` to expand it";

    #[test]
    fn value_that_begins_with_a_dollar_and_capitals_is_warned_about() {
        for (value, warned) in [
            ("$OPENAI_API_KEY", true),
            ("$K1", true),
            ("${KEY}", false),
            ("$${KEY}", false),
            ("$5 a call", false),
            ("$Key", false),
            ("$", false),
            ("a $KEY", false),
        ] {
            let text = format!(
                "models: {{ m: {{ provider: openai, model: x, api_key: '{value}' }} }}\nagents: {{ a: {{ model: m }} }}\n"
            );
            let found = warnings(&text, &[("KEY", "$FROM_OUTSIDE")], None);
            let expected = format!("h.yaml:1:44: models.m.api_key: {BRACES}");
            assert_eq!(
                found,
                if warned { vec![expected] } else { Vec::new() },
                "{value}"
            );
        }
        let variable = [("HOLDPOINT_MODELS__M__API_KEY", "$OPENAI_API_KEY")];
        assert_eq!(
            warnings(BASE, &variable, None),
            [format!(
                "HOLDPOINT_MODELS__M__API_KEY: models.m.api_key: {BRACES}"
            )]
        );
    }

    #[test]
    fn literal_secret_in_a_header_is_warned_about_and_not_repeated() {
        let all = |value: &str| {
            let text = format!(
                "models: {{ m: {{ provider: openai, model: x, headers: {{ Authorization: '{value}', X-Trace: '{value}' }} }} }}
agents: {{ a: {{ model: m, tools: [t] }} }}
tools: {{ t: {{ http: {{ url: 'http://h', headers: {{ cookie: '{value}', X-API-Key: '{value}', x-csrf-token: '{value}', Monkey: '{value}' }} }} }} }}
credentials: {{ jira: {{ fields: {{ token: {{}} }} }} }}
secrets: {{ keys: [ {{ id: k, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' }} ] }}
"
            );
            warnings(&text, &[("KEY", "a-value")], None)
        };
        let found = all("Bearer hunter2");
        let places = [
            "models.m.headers.Authorization",
            "headers.cookie",
            "headers.X-API-Key",
            "headers.x-csrf-token",
        ];
        assert_eq!(found.len(), places.len(), "{found:?}");
        for (line, place) in found.iter().zip(places) {
            assert!(
                line.contains(place)
                    && line.contains("stands in the file")
                    && !line.contains("hunter2"),
                "{line}"
            );
        }
        for filled in ["Bearer ${KEY}", "Bearer {{credential:jira.token}}", ""] {
            assert_eq!(all(filled), Vec::<String>::new(), "{filled}");
        }
        assert_eq!(
            all("$${KEY}").len(),
            places.len(),
            "a literal `${{` is nothing that is filled in"
        );
        let variable = [(
            "HOLDPOINT_MODELS__M__HEADERS",
            "{ Authorization: Bearer hunter2 }",
        )];
        assert_eq!(
            warnings(BASE, &variable, None),
            Vec::<String>::new(),
            "it stands in no file"
        );
    }

    #[test]
    fn password_in_the_database_flag_is_warned_about_and_elsewhere_is_not() {
        let with = "postgres://h:hunter2@127.0.0.1/h";
        for (flag, warned) in [
            (with, true),
            ("postgres://h@127.0.0.1/h?password=hunter2", true),
            ("postgres://h@127.0.0.1/h", false),
            ("postgres://h:@127.0.0.1/h", false),
        ] {
            let found = warnings(BASE, &[], Some(flag));
            assert_eq!(found.len(), usize::from(warned), "{flag}: {found:?}");
            assert!(
                found
                    .iter()
                    .all(|line| line
                        .starts_with("--database-url: database.url: the list of processes")),
                "{found:?}"
            );
            assert!(!found.concat().contains("hunter2"));
        }
        assert_eq!(
            warnings(BASE, &[("HOLDPOINT_DATABASE__URL", with)], None),
            Vec::<String>::new()
        );
        assert_eq!(
            warnings(&format!("{BASE}database: {{ url: '{with}' }}\n"), &[], None),
            Vec::<String>::new()
        );
    }

    #[test]
    fn database_off_loopback_whose_server_is_not_verified_is_warned_about() {
        for (url, warned) in [
            ("postgres://h@db.internal/h", true),
            ("postgres://h@10.0.0.1/h?sslmode=require", true),
            ("postgres://h@db.internal/h?sslmode=verify-ca", true),
            ("postgres://h@db.internal/h?sslmode=verify-full", false),
            ("postgres://h@127.0.0.1/h", false),
            ("postgres://h@127.8.0.1/h", false),
            ("postgres://h@localhost/h", false),
            ("postgres://h@[::1]/h", false),
            ("postgres://h@%2Frun%2Fpostgresql/h", false),
            ("postgres:///h?host=db.internal", true),
            ("sqlite://h.db", false),
        ] {
            let found = warnings(BASE, &[("HOLDPOINT_DATABASE__URL", url)], None);
            assert_eq!(found.len(), usize::from(warned), "{url}: {found:?}");
            assert!(
                found
                    .iter()
                    .all(|line| line.contains("sslmode=verify-full")),
                "{found:?}"
            );
        }
    }

    #[test]
    fn shell_beside_an_embedded_database_is_warned_about() {
        let text = format!(
            "{BASE}tools: {{ sh: {{ shell: {{}} }}, look: {{ http: {{ url: 'http://h' }} }} }}\n"
        );
        let found = warnings(&text, &[], None);
        assert!(
            found.len() == 1 && found[0].contains("tools.sh.shell: a command runs as the user"),
            "{found:?}"
        );
        assert_eq!(
            warnings(&text, &[], Some("postgres://h@127.0.0.1/h")),
            Vec::<String>::new()
        );
    }
}
