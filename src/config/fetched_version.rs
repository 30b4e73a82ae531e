//! Finds out whether the command of an MCP server names the exact version of the package that `npx`
//! or `uvx` fetches. This module finds the package as these programs do: in the options that name
//! packages. Without such an option, the package is the first argument that is not an option.

/// A program that fetches a package and runs a command of it.
struct Fetcher {
    /// The options that name a package.
    package_options: &'static [&'static str],
    /// Other options that take a value: after `=`, or as the next argument.
    value_options: &'static [&'static str],
    /// Returns whether the text that names a package fixes its version.
    is_pinned: fn(&str) -> bool,
}

const NPX: Fetcher = Fetcher {
    package_options: &["-p", "--package"],
    value_options: &[
        "-c",
        "--call",
        "-w",
        "--workspace",
        "--registry",
        "--cache",
        "--userconfig",
        "--globalconfig",
        "--prefix",
        "--loglevel",
        "--script-shell",
        "--node-options",
    ],
    is_pinned: is_pinned_for_npm,
};

const UVX: Fetcher = Fetcher {
    package_options: &["--from"],
    value_options: &[
        "-w",
        "--with",
        "--with-editable",
        "--with-requirements",
        "-p",
        "--python",
        "--python-platform",
        "-i",
        "--index",
        "--index-url",
        "--default-index",
        "--extra-index-url",
        "--index-strategy",
        "--keyring-provider",
        "-f",
        "--find-links",
        "-P",
        "--upgrade-package",
        "--reinstall-package",
        "--refresh-package",
        "--resolution",
        "--prerelease",
        "--exclude-newer",
        "--link-mode",
        "-C",
        "--config-setting",
        "-c",
        "--constraints",
        "-b",
        "--build-constraints",
        "--overrides",
        "--env-file",
        "--config-file",
        "--cache-dir",
        "--directory",
        "--project",
        "--color",
        "--allow-insecure-host",
    ],
    is_pinned: is_pinned_for_python,
};

/// Returns whether a command names the exact version of each package that it fetches. Returns false
/// if the command of `npx` or `uvx` names no package. Returns true for any other program, because it
/// fetches nothing.
pub(super) fn names_version(command: &[&str]) -> bool {
    let [program, arguments @ ..] = command else {
        return true;
    };
    let fetcher = match program.rsplit('/').next() {
        Some("npx") => NPX,
        Some("uvx") => UVX,
        Some(_) | None => return true,
    };
    let packages = packages(arguments, &fetcher);
    let is_pinned = |package: &&str| (fetcher.is_pinned)(package);
    !packages.is_empty() && packages.iter().all(is_pinned)
}

fn packages<'c>(arguments: &[&'c str], fetcher: &Fetcher) -> Vec<&'c str> {
    let mut packages = Vec::new();
    let mut rest = arguments.iter().copied();
    let mut first = None;
    while let Some(argument) = rest.next() {
        if argument == "--" {
            first = rest.next();
            break;
        }
        if !argument.starts_with('-') {
            first = Some(argument);
            break;
        }
        let parts = argument.split_once('=');
        let (option, value) =
            parts.map_or((argument, None), |(option, value)| (option, Some(value)));
        if fetcher.package_options.contains(&option) {
            packages.extend(value.or_else(|| rest.next()));
        } else if value.is_none() && fetcher.value_options.contains(&option) {
            rest.next();
        }
    }
    if packages.is_empty() {
        packages.extend(first);
    }
    packages
}

/// Whether the text fixes the version of an npm package (`server@1.2.3`, `@scope/server@1.2.3`,
/// `github:acme/server#0123abc`), or is a local path (`./server`).
fn is_pinned_for_npm(package: &str) -> bool {
    if is_path(package) {
        return true;
    }
    match package.split_once('#') {
        Some((_, reference)) => is_version(reference) || is_commit(reference),
        None => package
            .rsplit_once('@')
            .is_some_and(|(_, version)| is_exact_for_npm(version)),
    }
}

/// Whether a text is an exact version for npm, such as `1.2.3` or `v1.2.3-beta.1`. For npm, a
/// version with fewer numbers, such as `1` or `1.2`, is a range.
fn is_exact_for_npm(text: &str) -> bool {
    let numbers = text.strip_prefix(['v', '=']).unwrap_or(text);
    let numbers = numbers.split(['-', '+']).next().unwrap_or_default();
    let is_number = |part: &str| part.parse::<u64>().is_ok();
    is_version(text) && numbers.split('.').count() == 3 && numbers.split('.').all(is_number)
}

/// Whether the text fixes the version of a Python package (`server==1.2.3`, `server[cli]@1.2.3`,
/// `git+https://acme.com/server@v1.2.3`), or is a local path (`./server`).
fn is_pinned_for_python(package: &str) -> bool {
    let requirement = package.split(['#', ';']).next().unwrap_or_default().trim();
    if is_path(requirement) {
        return true;
    }
    if let Some((_, version)) = requirement.split_once("==") {
        return is_version(version.trim_start_matches('=').trim());
    }
    requirement.rsplit_once('@').is_some_and(|(_, reference)| {
        let reference = reference.trim();
        is_version(reference) || is_commit(reference)
    })
}

/// Whether a text is a version, such as `1.2.3` or `v1`. A tag such as `latest` or a range such as
/// `^1.2` is no version, because the next start may fetch a newer package for it.
fn is_version(text: &str) -> bool {
    let text = text.strip_prefix(['v', '=']).unwrap_or(text);
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '_' | '!');
    text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(letter)
}

/// Whether the text is the hash of a commit of git, maybe shortened.
fn is_commit(text: &str) -> bool {
    (7..=40).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// Whether a package is a file or a directory of this machine.
fn is_path(package: &str) -> bool {
    package.starts_with(['.', '/', '~']) || package.starts_with("file:")
}

#[cfg(test)]
mod tests {
    use super::names_version;

    #[test]
    fn command_names_exact_versions_if_each_package_that_it_fetches_has_one() {
        for (command, expected) in [
            ("npx server@1.2.3", true),
            ("npx -y @scope/server@1.2.3", true),
            ("npx -y @scope/server@1.2.3-beta.1+b2 /srv/files", true),
            ("npx --yes -- server@v1.2.3", true),
            ("npx -y alias@npm:@scope/server@1.2.3", true),
            ("npx -y github:acme/server#0123abc", true),
            ("npx -y ./server", true),
            ("npx --package=server@1.2.3 run", true),
            ("npx -y --package @scope/server@1.2.3 run", true),
            ("npx -p one@1.2.3 -p two@=2.0.0 -c run", true),
            ("npx -y /srv/server", true),
            ("/usr/bin/npx --registry https://h@1/ server@1.2.3", true),
            ("npx", false),
            ("npx -y server", false),
            ("npx -y @scope/server", false),
            ("npx -y server@latest", false),
            ("npx -y @scope/server@next", false),
            ("npx -y server@1", false),
            ("npx -y @scope/server@1.2", false),
            ("npx -y server@v1.2-beta.1", false),
            ("npx -y server@1.2.x", false),
            ("npx -y server@^1.2.3", false),
            ("npx -y alias@npm:@scope/server@1", false),
            ("npx -p one@1.2.3 -p two@2 -c run", false),
            ("npx -y server@*", false),
            ("npx -y server user@1.example.com", false),
            ("npx -y server --key=value", false),
            ("npx --registry=https://h@1/ server", false),
            ("npx --registry https://h@1/ server", false),
            ("npx --package=server run@1.2.3", false),
            ("npx -p one@1.2.3 -p two run", false),
            ("npx -y github:acme/server#main", false),
            ("npx -y git+ssh://git@acme.com/server.git", false),
            ("/usr/bin/npx -y server", false),
            ("uvx server==1.2", true),
            ("uvx server@1.2.3", true),
            ("uvx server[cli]==1.2.3", true),
            ("uvx --from server==1.2 run", true),
            ("uvx --from=server==1.2 run", true),
            ("uvx --from server@1.2 run", true),
            ("uvx --python 3.12 --with other server==1.2", true),
            ("uvx --from git+https://acme.com/server@v1.2 run", true),
            (
                "uvx --from git+https://acme.com/server@0123abc#egg=s run",
                true,
            ),
            ("uvx --from . run", true),
            ("uvx server", false),
            ("uvx server@latest", false),
            ("uvx server>=1.2", false),
            ("uvx server~=1.2", false),
            ("uvx server==1.*", false),
            ("uvx server --key=value", false),
            ("uvx --from server run==1.2", false),
            ("uvx --python 3.12 server", false),
            ("uvx --with other==1.2 server", false),
            ("uvx --from git+https://acme.com/server@main run", false),
            ("uvx --from git+https://me@acme.com/server run", false),
            ("server --root /srv", true),
            ("docker run npx", true),
        ] {
            let command: Vec<&str> = command.split(' ').collect();
            assert_eq!(names_version(&command), expected, "{command:?}");
        }
        assert!(names_version(&[]));
    }
}
