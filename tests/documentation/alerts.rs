//! Checks that the table of metrics names every metric, and that the alerts of the documentation
//! use only series and labels of this table.

use std::collections::{BTreeMap, BTreeSet};

use super::configurations::parse;
use super::{blocks, read};

/// Labels that Prometheus adds to every series that it scrapes.
const SCRAPE_LABELS: [&str; 2] = ["instance", "job"];

#[test]
fn alerts_of_the_documentation_use_documented_series_and_labels() {
    let page = read("docs/operations.md");
    let documented = documented_series(&page);
    let (mut named, mut labelled) = (0, 0);
    for expression in &alert_expressions() {
        let grouped = grouping_labels(expression);
        for (series, matched) in used_series(expression) {
            let labels = documented
                .get(series)
                .unwrap_or_else(|| panic!("no series {series}: {expression}"));
            for label in matched.iter().chain(&grouped) {
                assert!(labels.contains(label), "{series} {label}: {expression}");
                labelled += 1;
            }
            named += 1;
        }
    }
    assert!(named > 10 && labelled > 10, "{named} {labelled}");
}

/// A gauge has no series after a count that failed. If 0 stood in its place, each task that ever
/// failed would count as new after the gap.
#[test]
fn alerts_of_the_documentation_put_no_value_in_the_place_of_a_missing_series() {
    for expression in &alert_expressions() {
        assert!(!expression.contains("vector("), "{expression}");
    }
}

#[test]
fn table_of_metrics_names_every_metric_of_the_service_and_no_other() {
    let page = read("docs/operations.md");
    let documented: BTreeSet<&str> = metric_rows(&page).map(|[name, ..]| name).collect();
    let files = ["src/telemetry.rs", "src/telemetry/labelled.rs"];
    let sources: String = files.map(read).concat();
    let literals = sources
        .split('"')
        .filter(|text| text.starts_with("holdpoint_"));
    let registered: BTreeSet<&str> = literals
        .filter(|text| text.chars().all(is_of_name))
        .collect();
    assert!(registered.len() > 20, "{registered:?}");
    assert_eq!(documented, registered);
}

/// Returns the expressions of the documentation's alerts.
fn alert_expressions() -> Vec<String> {
    let alerts = blocks("docs/operations.md")
        .into_iter()
        .find(|block| block.text.starts_with("groups:"))
        .expect("the alerts");
    let groups = parse(&alerts.place(), &alerts.text);
    let rules = groups["groups"][0]["rules"].as_array().expect("rules");
    assert!(rules.len() > 10, "{rules:#?}");
    let expressions = rules.iter().map(|rule| rule["expr"].as_str());
    expressions
        .map(|expression| expression.expect("an expression").to_owned())
        .collect()
}

/// Returns the name, the kind and the labels of each row of the table of metrics.
fn metric_rows(page: &str) -> impl Iterator<Item = [&str; 3]> {
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `holdpoint_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        [cells[1].trim_matches('`'), cells[2], cells[3]]
    })
}

/// Returns the series of the table of metrics, each with its labels. A histogram has three series.
fn documented_series(page: &str) -> BTreeMap<String, BTreeSet<&str>> {
    let mut series = BTreeMap::new();
    for [name, kind, labels] in metric_rows(page) {
        let labels: BTreeSet<&str> = labels.split('`').skip(1).step_by(2).collect();
        let suffixes: &[&str] = if kind == "histogram" {
            &["_bucket", "_count", "_sum"]
        } else {
            &[""]
        };
        for suffix in suffixes {
            series.insert(format!("{name}{suffix}"), labels.clone());
        }
    }
    series
}

/// Returns the service's series that an expression of `PromQL` selects, each with the labels by
/// which it is selected.
fn used_series(expression: &str) -> Vec<(&str, Vec<&str>)> {
    let starts = expression.match_indices("holdpoint_").map(|(at, _)| at);
    let series = starts.map(|at| {
        let rest = &expression[at..];
        let (name, rest) = rest.split_at(name_length(rest));
        let matchers = rest
            .strip_prefix('{')
            .and_then(|rest| rest.split('}').next());
        // Every second part is a value in quotation marks. `step_by` keeps the other parts, which
        // contain the labels.
        let parts = matchers.unwrap_or_default().split('"').step_by(2);
        let labels = parts.map(|part| part.trim_matches(|at: char| !is_of_name(at)));
        (name, labels.filter(|label| !label.is_empty()).collect())
    });
    series.collect()
}

/// Returns the labels by which an expression groups series, except those of Prometheus.
fn grouping_labels(expression: &str) -> Vec<&str> {
    let lists = expression.split("by (").skip(1);
    let labels = lists.flat_map(|rest| rest.split(')').next().unwrap_or_default().split(','));
    labels
        .map(str::trim)
        .filter(|label| !SCRAPE_LABELS.contains(label))
        .collect()
}

fn name_length(text: &str) -> usize {
    text.find(|at: char| !is_of_name(at)).unwrap_or(text.len())
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_lowercase() || character == '_'
}
