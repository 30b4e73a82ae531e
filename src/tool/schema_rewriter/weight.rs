//! Counts how many schemas a rewritten schema applies to one value. The cost of checking a value
//! grows with this number.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{CONDITION_KEYWORDS, IN_PLACE_KEYWORDS, IN_PLACE_LIST_KEYWORDS, IN_PLACE_MAP_KEYWORDS};
use crate::tool::schema::SchemaFlaw;

const MAX_WEIGHT: u64 = 10_000;

/// Checks `schema` and the copied targets of its `$ref`s. Returns a flaw for each of these schemas
/// that applies more than [`MAX_WEIGHT`] schemas to one value. Also returns a flaw for each `$ref`
/// that leads back to itself for the same value. The keys of `copies` and `places` are the numbers
/// of the copies. A flaw in a copy has the place of the original, from `places`.
pub(super) fn flaws(
    schema: &Value,
    copies: &Map<String, Value>,
    places: &BTreeMap<String, String>,
) -> BTreeSet<SchemaFlaw> {
    let mut weights = Weights {
        copies,
        places,
        known: BTreeMap::new(),
        path: Vec::new(),
        flaws: BTreeSet::new(),
    };
    for (number, copy) in copies {
        weights.of_copy(number, copy);
    }
    let whole = weights.of_schema(schema);
    weights.within_limit(whole, "");
    weights.flaws
}

struct Weights<'s> {
    copies: &'s Map<String, Value>,
    places: &'s BTreeMap<String, String>,
    /// The weights computed so far, by the copies' numbers.
    known: BTreeMap<&'s str, u64>,
    /// The copies whose weights are being computed, the outermost first. Each copy is named by its
    /// key in `copies`.
    path: Vec<&'s str>,
    flaws: BTreeSet<SchemaFlaw>,
}

impl<'s> Weights<'s> {
    /// Returns the weight of a copied `$ref` target: the number of schemas that the copy applies to
    /// one value. A copy with a flaw has the weight 1, so that the flaw is not reported once more
    /// for each schema that refers to the copy.
    fn of_copy(&mut self, number: &'s str, copy: &'s Value) -> u64 {
        if let Some(weight) = self.known.get(number) {
            return *weight;
        }
        let place = self.places.get(number).map_or("", String::as_str);
        if self.path.contains(&number) {
            let detail = "has a `$ref` that leads back to itself for the same value";
            self.flaws.insert(SchemaFlaw::new(place, detail));
            return 1;
        }
        self.path.push(number);
        let weight = self.of_schema(copy);
        self.path.pop();
        let weight = self.within_limit(weight, place);
        self.known.insert(number, weight);
        weight
    }

    fn within_limit(&mut self, weight: u64, place: &str) -> u64 {
        if weight <= MAX_WEIGHT {
            return weight;
        }
        let detail = "combines too many schemas for one value";
        self.flaws.insert(SchemaFlaw::new(place, detail));
        1
    }

    fn of_schema(&mut self, schema: &'s Value) -> u64 {
        let Value::Object(members) = schema else {
            return 1;
        };
        let mut total = 1_u64;
        for (keyword, value) in members {
            let keyword = keyword.as_str();
            let weight = if keyword == "$ref" {
                let number = value
                    .as_str()
                    .and_then(|reference| reference.strip_prefix("#/$defs/"));
                let copies = self.copies;
                match number.and_then(|number| copies.get_key_value(number)) {
                    Some((number, copy)) => self.of_copy(number, copy),
                    None => 0,
                }
            } else if IN_PLACE_KEYWORDS.contains(&keyword) || CONDITION_KEYWORDS.contains(&keyword)
            {
                self.of_schema(value)
            } else if IN_PLACE_LIST_KEYWORDS.contains(&keyword) {
                self.of_all(value.as_array().into_iter().flatten())
            } else if IN_PLACE_MAP_KEYWORDS.contains(&keyword) {
                self.of_all(value.as_object().into_iter().flat_map(Map::values))
            } else {
                0
            };
            total = total.saturating_add(weight);
        }
        total
    }

    fn of_all(&mut self, schemas: impl Iterator<Item = &'s Value>) -> u64 {
        schemas.fold(0_u64, |sum, schema| {
            sum.saturating_add(self.of_schema(schema))
        })
    }
}
