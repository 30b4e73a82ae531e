//! Reads the sections of the file: single settings, maps of settings by name, and lists. Also
//! corrects the indexes in the places of mistakes that are found in the settings.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::decode;
use super::tree::{Kind, Node};
use crate::world::{Mistake, Mistakes};

/// The lists whose unreadable elements are kept with the defaults (see [`section_list`]).
const KEPT_LISTS: [&[&str]; 5] = [
    &["auth", "api_keys"],
    &["auth", "people"],
    &["secrets", "keys"],
    &["policy"],
    &["notify", "to"],
];

/// Reads a section. Returns the defaults if the section is missing or cannot be read.
pub(super) fn section<T: for<'de> Deserialize<'de> + Default>(
    root: &mut Node,
    key: &str,
    mistakes: &mut Mistakes,
) -> T {
    match root.get_mut(key) {
        Some(node) if !node.broken => decode::read(node, &[key], mistakes),
        Some(_) | None => T::default(),
    }
}

/// Reads a map of settings by name. An unreadable entry gets the defaults. The entry is kept
/// because other settings may refer to its name.
pub(super) fn section_map<T: for<'de> Deserialize<'de> + Default>(
    root: &mut Node,
    key: &str,
    mistakes: &mut Mistakes,
) -> BTreeMap<String, T> {
    let Some(section) = root.get_mut(key).filter(|section| !section.broken) else {
        return BTreeMap::new();
    };
    let Kind::Map(entries) = &mut section.kind else {
        mistakes.add(&[key], format!("expected a map, found {}", section.noun()));
        return BTreeMap::new();
    };
    let mut all = BTreeMap::new();
    for entry in entries {
        let value = if entry.node.broken {
            T::default()
        } else {
            decode::read(&mut entry.node, &[key, &entry.key], mistakes)
        };
        all.insert(entry.key.clone(), value);
    }
    all
}

/// Reads a list of settings. An unreadable element gets the defaults. The element is kept so that
/// the indexes stay those of the file.
pub(super) fn section_list<T: for<'de> Deserialize<'de> + Default>(
    root: &mut Node,
    path: &[&str],
    mistakes: &mut Mistakes,
) -> Vec<T> {
    let mut at = root;
    for step in path {
        let Some(next) = at.get_mut(step).filter(|next| !next.broken) else {
            return Vec::new();
        };
        at = next;
    }
    let Kind::List(elements) = &mut at.kind else {
        mistakes.add(path, format!("expected a list, found {}", at.noun()));
        at.broken = true;
        return Vec::new();
    };
    let mut all = Vec::new();
    for (index, element) in elements.iter_mut().enumerate() {
        let index = index.to_string();
        let place: Vec<&str> = path.iter().copied().chain([index.as_str()]).collect();
        all.push(if element.broken {
            T::default()
        } else {
            decode::read(element, &place, mistakes)
        });
    }
    all
}

/// Corrects the indexes in the places of mistakes that were found in the settings. A list of the
/// settings lacks the elements that could not be read, unless it is one of [`KEPT_LISTS`]. So after
/// a missing element, an index in the list is lower than the index in the file.
pub(super) fn correct_indexes<'m>(
    root: &Node,
    mistakes: impl IntoIterator<Item = &'m mut Mistake>,
) {
    for mistake in mistakes {
        let mut node = root;
        let mut path: Vec<String> = Vec::new();
        for step in &mut mistake.place {
            let is_kept = KEPT_LISTS.iter().any(|kept| path.as_slice() == *kept);
            if let Some(index) = file_index(node, step).filter(|_| !is_kept) {
                *step = index.to_string();
            }
            let Some(next) = node.get(step) else { break };
            path.push(step.clone());
            node = next;
        }
    }
}

/// Returns the index of an element of `list` in the file. `step` is the element's index among the
/// readable elements. Returns `None` if the node is not a list, or has no such element.
fn file_index(list: &Node, step: &str) -> Option<usize> {
    let nth: usize = step.parse().ok()?;
    let elements = list.elements().iter().enumerate();
    let mut readable = elements.filter(|(_, element)| !element.broken);
    readable.nth(nth).map(|(index, _)| index)
}
