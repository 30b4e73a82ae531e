//! Overrides keys of the file, first by environment variables such as `HOLDPOINT_SERVER__LISTEN`,
//! then by flags. Invariant: an override is an ordinary node of the tree, and its origin names the
//! variable or flag.

use std::collections::BTreeMap;

use super::environment::Environment;
use super::tree::{self, Kind, MapEntry, Node, Origin};
use crate::world::Mistakes;

const PREFIX: &str = "HOLDPOINT_";

/// The variables of this service that override no key of the configuration. The commands of
/// `holdpoint gate` read all of these variables except `HOLDPOINT_CONFIG`.
const OTHER_VARIABLES: &[&str] = &[
    "HOLDPOINT_CONFIG",
    "HOLDPOINT_URL",
    "HOLDPOINT_KEY",
    "HOLDPOINT_GATE",
    "HOLDPOINT_WAIT",
];
/// The variable that arms failpoints. In a build without failpoints it is `None`, so
/// `apply_variables` warns that the variable is ignored.
const FAILPOINTS_VARIABLE: Option<&str> = if cfg!(failpoints) {
    Some("HOLDPOINT_FAILPOINTS")
} else {
    None
};

/// The message about a variable that the configuration needs and that is not UTF-8.
pub const NOT_UTF_8: &str = "the variable's value is not UTF-8";

/// The values of the flags that override a key; `None` if a flag is not given.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// The address and port to listen on; overrides `server.listen`.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// The URL of the database; overrides `database.url`.
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

/// Applies the environment variables to the tree, in this order:
/// - Variables with shorter paths come first. Otherwise `…__A` would overwrite the value that
///   `…__A__B` has set.
/// - Among paths of the same length, indexes come in numeric order, because a list grows by one
///   element at a time.
///
/// A variable's name matches a key without regard to case, `-` and `_`. Two variables for the same
/// key are a mistake. If the file lacks the key, the key is added. The name of a header, or of a
/// variable of a command, is then spelled as `own_name` returns it. Any other new key has its
/// spelling in the schema, or else is in lower case. `known` returns all keys of the schema, and is
/// called only if a variable overrides a key.
pub fn apply_variables(
    root: &mut Node,
    environment: &Environment,
    known: impl FnOnce() -> Vec<String>,
    mistakes: &mut Mistakes,
) {
    let mut overrides = Vec::new();
    for (name, value) in environment.variables() {
        if let Some(path) = path_of(name) {
            overrides.push((path, name, value));
        } else if name.to_ascii_uppercase().starts_with(PREFIX)
            && !OTHER_VARIABLES.contains(&name)
            && FAILPOINTS_VARIABLE != Some(name)
        {
            let detail = format!(
                "this variable is ignored: one that overrides a key has two underscores, as in `{PREFIX}SERVER__LISTEN`"
            );
            mistakes.warn(&[&format!("@{name}")], detail);
        }
    }
    let undecodable = environment.undecodable();
    for name in undecodable.filter(|name| path_of(name).is_some()) {
        mistakes.add(&[&format!("@{name}")], NOT_UTF_8);
    }
    if overrides.is_empty() {
        return;
    }
    let known = known();
    overrides.sort_by_cached_key(|(path, _, _)| sort_key(path));
    let mut names = BTreeMap::new();
    for (path, name, value) in overrides {
        let origin = Origin::Variable(name.to_owned());
        let mut value_mistakes = Mistakes::default();
        let Some(node) = tree::parse(value, Some(origin), &mut value_mistakes)
            .filter(|_| value_mistakes.is_empty())
        else {
            mistakes.add(&[&format!("@{name}")], "the variable's value is not YAML");
            continue;
        };
        let detail = match put(root, &path, node, &known) {
            Ok(place) => names
                .insert(place, name)
                .map(|other| format!("`{other}` overrides the same key")),
            Err(detail) => Some(detail),
        };
        if let Some(detail) = detail {
            mistakes.add(&[&format!("@{name}")], detail);
        }
    }
}

/// Applies the flags, which override the file and the variables.
pub fn apply_flags(root: &mut Node, flags: &Flags) {
    let overrides = [
        ("--listen", "server", "listen", &flags.listen),
        ("--database-url", "database", "url", &flags.database_url),
    ];
    for (flag, section, key, value) in overrides {
        if let Some(value) = value {
            let node = Node::new(Origin::Flag(flag), Kind::Text(value.clone()));
            // `put` fails if the section is not a map. `read_sections` reports this mistake later.
            let _ = put(root, &[section.to_owned(), key.to_owned()], node, &[]);
        }
    }
}

/// Returns the path of the key that a variable overrides, in lower case. Returns `None` if the
/// variable overrides no key.
fn path_of(name: &str) -> Option<Vec<String>> {
    let upper = name.to_ascii_uppercase();
    let path = upper.strip_prefix(PREFIX)?;
    let steps: Vec<String> = path.split("__").map(str::to_ascii_lowercase).collect();
    (steps.len() > 1 && steps.iter().all(|step| !step.is_empty())).then_some(steps)
}

/// Returns the key by which variables are sorted: the number of steps in the path, then the steps
/// as numbers. A step that is not a number comes after all indexes.
fn sort_key(path: &[String]) -> (usize, Vec<usize>) {
    let steps = path.iter().map(|step| step.parse().unwrap_or(usize::MAX));
    (path.len(), steps.collect())
}

/// Puts a node at a path, and creates the missing maps and lists on the path. Returns the place of
/// the node: the keys as the tree spells them, and the indexes of list elements.
fn put(
    root: &mut Node,
    path: &[String],
    node: Node,
    known: &[String],
) -> Result<Vec<String>, String> {
    let mut place = Vec::new();
    let mut at = root;
    let mut rest = path;
    while let [step, tail @ ..] = rest {
        if matches!(at.kind, Kind::Null) {
            let is_index = step.parse::<usize>().is_ok();
            at.kind = if is_index {
                Kind::List(Vec::new())
            } else {
                Kind::Map(Vec::new())
            };
        }
        let origin = node.origin.clone();
        let own_name = own_name(path, rest.len());
        let (own_step, next) = match &mut at.kind {
            Kind::List(elements) => {
                if step.parse() == Ok(elements.len()) {
                    elements.push(Node::new(origin, Kind::Null));
                }
                let (index, found) = element(elements, step)?;
                (index.to_string(), found)
            }
            Kind::Map(entries) => {
                let found = match &own_name {
                    Some(name) => entry(entries, name, &[], origin)?,
                    None => entry(entries, step, known, origin)?,
                };
                (found.key.clone(), &mut found.node)
            }
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => {
                return Err(format!("there is nothing below which `{step}` could stand"));
            }
        };
        place.push(own_step);
        if tail.is_empty() {
            *next = node;
            break;
        }
        at = next;
        rest = tail;
    }
    Ok(place)
}

/// Returns the usual spelling of a step of `path`, if the step is the name of a header or of an
/// environment variable of a command. A header is spelled with `-` instead of `_`, and an
/// environment variable in upper case. Returns `None` for any other step. `rest` is the number of
/// steps from this step to the end of the path, this step included.
fn own_name(path: &[String], rest: usize) -> Option<String> {
    let (above, below) = path.split_at_checked(path.len().checked_sub(rest)?)?;
    let step = below.first()?;
    let above: Vec<&str> = above.iter().map(String::as_str).collect();
    match above.as_slice() {
        ["tools", _, "shell", "env"] | ["mcp", _, "env"] => Some(step.to_ascii_uppercase()),
        ["models" | "mcp", _, "headers"]
        | ["tools", _, "http", "headers"]
        | ["notify", "to", _, "webhook", "headers"] => Some(step.replace('_', "-")),
        _ => None,
    }
}

/// Returns the element whose `name`, `id` or `user` is `step`, else the element with the index
/// `step`. Returns its index, too.
fn element<'n>(elements: &'n mut [Node], step: &str) -> Result<(usize, &'n mut Node), String> {
    let named = |node: &Node| {
        ["name", "id", "user"].iter().any(|key| {
            node.get(key)
                .and_then(Node::text)
                .is_some_and(|name| is_same_name(name, step))
        })
    };
    let by_name: Vec<usize> = elements
        .iter()
        .enumerate()
        .filter(|(_, node)| named(node))
        .map(|(index, _)| index)
        .collect();
    let index = match (by_name.as_slice(), step.parse::<usize>()) {
        ([index], _) => *index,
        ([], Ok(index)) => index,
        ([], Err(_)) => return Err(format!("the list has no element `{step}`")),
        (_, _) => return Err(format!("the list has several elements `{step}`")),
    };
    elements
        .get_mut(index)
        .map(|element| (index, element))
        .ok_or_else(|| format!("the list has no element `{step}`"))
}

/// Returns the entry whose key equals `step` but for case, else the entry whose key has the same
/// name ([`is_same_name`]), else a new entry. Fails if several entries match.
fn entry<'n>(
    entries: &'n mut Vec<MapEntry>,
    step: &str,
    known: &[String],
    origin: Origin,
) -> Result<&'n mut MapEntry, String> {
    let indexes = |matches: fn(&str, &str) -> bool| -> Vec<usize> {
        let found = entries.iter().enumerate();
        let found = found.filter(|(_, entry)| matches(&entry.key, step));
        found.map(|(index, _)| index).collect()
    };
    let mut found = indexes(str::eq_ignore_ascii_case);
    if found.is_empty() {
        found = indexes(is_same_name);
    }
    let index = match found.as_slice() {
        &[index] => index,
        [] => {
            let key = known
                .iter()
                .find(|key| is_same_name(key, step))
                .cloned()
                .unwrap_or_else(|| step.to_owned());
            entries.push(MapEntry {
                key,
                origin: origin.clone(),
                node: Node::new(origin, Kind::Null),
            });
            entries.len() - 1
        }
        [_, _, ..] => {
            return Err(format!("there are several keys that `{step}` could mean"));
        }
    };
    entries
        .get_mut(index)
        .ok_or_else(|| format!("there is no key `{step}`"))
}

/// Whether two names are equal without regard to case, `-` and `_`.
fn is_same_name(one: &str, other: &str) -> bool {
    let letters = |name: &str| name.replace(['-', '_'], "");
    letters(one).eq_ignore_ascii_case(&letters(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with_variables(text: &str, variables: &[(&str, &str)]) -> (serde_json::Value, Vec<String>) {
        let mut mistakes = Mistakes::default();
        let mut node = tree::parse(text, None, &mut mistakes).unwrap();
        let known = ["server", "public_url", "listen", "api_key"].map(str::to_owned);
        apply_variables(
            &mut node,
            &Environment::new(variables, &[]),
            || known.to_vec(),
            &mut mistakes,
        );
        let ignored = mistakes
            .warnings
            .iter()
            .filter(|one| one.detail.contains("is ignored"));
        let ignored = ignored.map(|one| format!("{} is ignored", one.place.join(".")));
        let found = mistakes
            .found
            .iter()
            .map(|one| format!("{} {}", one.place.join("."), one.detail));
        (node.to_json(), found.chain(ignored).collect())
    }

    #[test]
    fn variable_overrides_a_key_with_a_yaml_value() {
        let (json, mistakes) = with_variables(
            "server: {listen: a, cors_origins: [x]}\ntools: {Lookup-Order: {http: {timeout: 1s}}}\n",
            &[
                ("HOLDPOINT_SERVER__LISTEN", "b:1"),
                ("HOLDPOINT_SERVER__CORS_ORIGINS", "[y, z]"),
                ("HOLDPOINT_SERVER__MAX_RUNNING", "7"),
                ("holdpoint_tools__lookup_order__http__timeout", "2s"),
                ("HOLDPOINT_SERVER__PUBLICURL", "u"),
                ("HOLDPOINT_CONFIG", "x.yaml"),
                ("HOLDPOINT_URL", "http://h"),
                ("HOLDPOINT_KEY", "k"),
                ("HOLDPOINT_GATE", "g"),
                ("HOLDPOINT_WAIT", "50s"),
                ("HOLDPOINT_PORT", "1"),
                ("HOLDPOINT___X", "1"),
                ("OTHER__X", "1"),
                ("holdpoint_config", "y.yaml"),
                ("HOLDPOINT_LISTEN", "0.0.0.0:80"),
            ],
        );
        let ignored = [
            "HOLDPOINT_LISTEN",
            "HOLDPOINT_PORT",
            "HOLDPOINT___X",
            "holdpoint_config",
        ];
        assert_eq!(mistakes, ignored.map(|name| format!("@{name} is ignored")));
        assert_eq!(
            json,
            json!({
                "server": {"listen": "b:1", "cors_origins": ["y", "z"], "max_running": 7, "public_url": "u"},
                "tools": {"Lookup-Order": {"http": {"timeout": "2s"}}}
            })
        );
    }

    #[test]
    fn new_variable_of_a_command_or_header_is_added_in_the_spelling_of_its_kind() {
        let (json, mistakes) = with_variables(
            "tools: {T: {shell: {env: {Path: a}}}}\n",
            &[
                ("HOLDPOINT_TOOLS__T__SHELL__ENV__API_KEY", "b"),
                ("HOLDPOINT_TOOLS__T__SHELL__ENV__PATH", "c"),
                ("HOLDPOINT_MCP__S__ENV__LISTEN", "d"),
                ("HOLDPOINT_MCP__S__HEADERS__X_API_KEY", "e"),
                ("HOLDPOINT_TOOLS__T__HTTP__HEADERS__API_KEY", "f"),
            ],
        );
        assert_eq!(mistakes, Vec::<String>::new());
        assert_eq!(
            json,
            json!({
                "tools": {"T": {
                    "shell": {"env": {"Path": "c", "API_KEY": "b"}},
                    "http": {"headers": {"api-key": "f"}}
                }},
                "mcp": {"s": {"env": {"LISTEN": "d"}, "headers": {"x-api-key": "e"}}}
            })
        );
    }

    #[test]
    fn list_elements_are_addressed_by_name_or_index_and_sections_are_created() {
        let (json, mistakes) = with_variables(
            "policy: [{name: reads, decide: allow}, {name: small-refund, decide: allow}]\nauth: {api_keys: [{user: bob}]}\n",
            &[
                ("HOLDPOINT_POLICY__SMALL_REFUND__DECIDE", "deny"),
                ("HOLDPOINT_POLICY__0__DECIDE", "hold"),
                ("HOLDPOINT_AUTH__API_KEYS__BOB__KEY", "\"123\""),
                ("HOLDPOINT_AUTH__API_KEYS__1__USER", "eve"),
                ("HOLDPOINT_SERVER__CORS_ORIGINS__0", "https://a"),
                ("HOLDPOINT_DATABASE__URL", "postgres://h/d"),
            ],
        );
        assert_eq!(mistakes, Vec::<String>::new());
        assert_eq!(
            json,
            json!({
                "policy": [{"name": "reads", "decide": "hold"}, {"name": "small-refund", "decide": "deny"}],
                "auth": {"api_keys": [{"user": "bob", "key": "123"}, {"user": "eve"}]},
                "server": {"cors_origins": ["https://a"]},
                "database": {"url": "postgres://h/d"}
            })
        );
    }

    #[test]
    fn list_that_grows_beyond_ten_elements_has_them_in_the_order_of_their_indexes() {
        let names: Vec<String> = (0..=10)
            .map(|index| format!("HOLDPOINT_SERVER__CORS_ORIGINS__{index}"))
            .collect();
        let values: Vec<String> = (0..=10).map(|index| format!("https://h{index}")).collect();
        let variables: Vec<(&str, &str)> = names
            .iter()
            .zip(&values)
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let (json, mistakes) = with_variables("", &variables);
        assert_eq!(mistakes, Vec::<String>::new());
        assert_eq!(json, json!({"server": {"cors_origins": values}}));
    }

    #[test]
    fn variables_whose_names_differ_only_in_case_are_refused() {
        let (_, mistakes) = with_variables(
            "server: {listen: a}\n",
            &[
                ("HOLDPOINT_SERVER__LISTEN", "b:1"),
                ("holdpoint_server__listen", "c:1"),
                ("HOLDPOINT_SERVER__MAX_RUNNING", "7"),
            ],
        );
        let detail = "`HOLDPOINT_SERVER__LISTEN` overrides the same key";
        assert_eq!(mistakes, [format!("@holdpoint_server__listen {detail}")]);
    }

    #[test]
    fn variables_that_name_the_same_key_in_two_spellings_are_refused() {
        let (_, mistakes) = with_variables(
            "auth: {api_keys: [{user: bob}]}\nmodels: {main_a: {}, main-b: {}}\n",
            &[
                ("HOLDPOINT_SERVER__PUBLICURL", "a"),
                ("HOLDPOINT_SERVER__PUBLIC_URL", "b"),
                ("HOLDPOINT_MODELS__MAIN_A__MODEL", "x"),
                ("HOLDPOINT_MODELS__MAIN_B__MODEL", "y"),
                ("HOLDPOINT_MODELS__MAINB__MODEL", "z"),
                ("HOLDPOINT_AUTH__API_KEYS__0__KEY", "k"),
                ("HOLDPOINT_AUTH__API_KEYS__BOB__KEY", "l"),
            ],
        );
        assert_eq!(
            mistakes,
            [
                "@HOLDPOINT_SERVER__PUBLIC_URL `HOLDPOINT_SERVER__PUBLICURL` overrides the same key",
                "@HOLDPOINT_MODELS__MAIN_B__MODEL `HOLDPOINT_MODELS__MAINB__MODEL` overrides the same key",
                "@HOLDPOINT_AUTH__API_KEYS__BOB__KEY `HOLDPOINT_AUTH__API_KEYS__0__KEY` overrides the same key",
            ]
        );
    }

    #[test]
    fn variable_for_one_of_several_keys_that_differ_only_in_case_is_refused() {
        let (json, mistakes) = with_variables(
            "models: {Main: {model: a}, main: {model: b}}\n",
            &[("HOLDPOINT_MODELS__MAIN__MODEL", "c")],
        );
        assert_eq!(
            mistakes,
            ["@HOLDPOINT_MODELS__MAIN__MODEL there are several keys that `main` could mean"]
        );
        assert_eq!(
            json,
            json!({"models": {"Main": {"model": "a"}, "main": {"model": "b"}}})
        );
    }

    #[test]
    fn override_without_a_place_is_reported_by_its_variable() {
        let (_, mistakes) = with_variables(
            "policy: []\na-b: 1\na_b: 2\nmodels: {m: text}\n",
            &[
                ("HOLDPOINT_POLICY__GONE__DECIDE", "x"),
                ("HOLDPOINT_SERVER__LISTEN", "[sk-secret"),
                ("HOLDPOINT_MODELS__M__API_KEY", "k"),
            ],
        );
        assert_eq!(
            mistakes,
            [
                "@HOLDPOINT_SERVER__LISTEN the variable's value is not YAML",
                "@HOLDPOINT_MODELS__M__API_KEY there is nothing below which `api_key` could stand",
                "@HOLDPOINT_POLICY__GONE__DECIDE the list has no element `gone`",
            ]
        );
    }

    #[test]
    fn flag_overrides_a_variable() {
        let mut node = Node::new(Origin::Flag("x"), Kind::Null);
        let flags = Flags {
            listen: Some("1.2.3.4:5".into()),
            database_url: Some("sqlite://x".into()),
        };
        apply_flags(&mut node, &flags);
        assert_eq!(
            node.to_json(),
            json!({"server": {"listen": "1.2.3.4:5"}, "database": {"url": "sqlite://x"}})
        );
    }
}
