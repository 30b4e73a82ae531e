//! Reads environment variables, the configuration file, the lock file, and the files of
//! `${file:…}`. Other code takes an [`Environment`] as a parameter, so that a test can supply its
//! own variables and files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// The environment variables and the readable files. `files` is `None` for the whole file system.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// The names of the variables whose values are not UTF-8.
    undecodable: BTreeSet<String>,
    files: Option<BTreeMap<PathBuf, String>>,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.variables.len())
    }
}

impl Environment {
    /// Returns the environment of this process. Leaves out variables whose names are not UTF-8.
    #[must_use]
    pub fn process() -> Self {
        let mut environment = Self::default();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else {
                continue;
            };
            if let Ok(value) = value.into_string() {
                environment.variables.insert(name, value);
            } else {
                environment.undecodable.insert(name);
            }
        }
        environment
    }

    /// Returns an environment with exactly these variables and files.
    #[must_use]
    pub fn new(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            variables: variables.iter().map(own).collect(),
            files: Some(
                files
                    .iter()
                    .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
                    .collect(),
            ),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns the name and the value of each variable, ordered by name.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the names of the variables whose values are not UTF-8. [`Environment::variable`]
    /// returns `None` for such a variable. A caller that needs the variable reports a mistake.
    pub fn undecodable(&self) -> impl Iterator<Item = &str> {
        self.undecodable.iter().map(String::as_str)
    }

    /// Whether the variable has a value that is not UTF-8.
    pub fn is_undecodable(&self, name: &str) -> bool {
        self.undecodable.contains(name)
    }

    /// Returns the text of a file. Fails if the file cannot be read or is not UTF-8.
    pub fn file(&self, path: &Path) -> std::io::Result<String> {
        match &self.files {
            None => std::fs::read_to_string(path),
            Some(files) => files
                .get(path)
                .cloned()
                .ok_or_else(|| rustix::io::Errno::NOENT.into()),
        }
    }
}
