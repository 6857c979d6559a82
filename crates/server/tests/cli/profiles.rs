//! Tests `--profile`: the user's file has servers and tokens by name.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Output;

use crate::support::Server;
use crate::support::program::output;
use crate::{crore, text};

/// A configuration directory, which is removed at the end.
struct Configuration(PathBuf);

impl Configuration {
    fn configuration_with(name: &str, profiles: &str) -> Configuration {
        let path = format!("crore-profiles-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(path);
        fs::create_dir_all(path.join("crore")).expect("a directory");
        let file = path.join("crore/profiles.toml");
        fs::write(&file, profiles).expect("a file");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its owner's");
        Configuration(path)
    }

    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = crore(args);
        command.env("XDG_CONFIG_HOME", &self.0);
        command.envs(variables.iter().copied());
        output(&mut command)
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NOBODY: &str = "http://127.0.0.1:1";

#[test]
fn profile_names_server_and_token_and_is_between_flags_and_variables() {
    let server = Server::with_admin("[admin]\ntoken = '0123456789abcdef'\n");
    let (data, admin) = (server.address(), server.admin());
    let configuration = Configuration::configuration_with(
        "order",
        &format!(
            "[live]\nserver = 'http://{data}'\nadmin_url = 'http://{admin}'\nadmin_token = '0123456789abcdef'\n[nobody]\nserver = '{NOBODY}'\n"
        ),
    );
    let server_url = format!("http://{data}");
    let is_live = |args: &[&str], variables: &[(&str, &str)]| {
        configuration.run(args, variables).status.success()
    };
    let publish_by = |profile| ["pub", "a", "x", "--profile", profile];
    assert!(is_live(&publish_by("live"), &[]));
    assert!(!is_live(&publish_by("nobody"), &[]));
    // `--profile` takes precedence over variables, and the flag `--server` over the profile.
    assert!(is_live(&publish_by("live"), &[("CRORE_SERVER", NOBODY)]));
    assert!(!is_live(
        &[&publish_by("live")[..], &["--server", NOBODY]].concat(),
        &[]
    ));
    let published = ["pub", "a", "x"];
    assert!(is_live(&published, &[("CRORE_PROFILE", "live")]));
    let profile_and_server = [
        ("CRORE_PROFILE", "nobody"),
        ("CRORE_SERVER", &server_url[..]),
    ];
    assert!(is_live(&published, &profile_and_server));
    assert!(is_live(&["admin", "stats", "--profile", "live"], &[]));
    assert!(is_live(&["admin", "--profile", "live", "stats"], &[]));
}

#[test]
fn profile_that_cannot_be_used_is_refused_with_the_remedy() {
    let configuration = Configuration::configuration_with(
        "wrong",
        "[live]\nserver = 'http://127.0.0.1:1'\ntoken = 'secret'\n[test]\nserver = 'ftp://x'\n",
    );
    let refused = |args: &[&str], variables: &[(&str, &str)], reason: &str| {
        let output = configuration.run(args, variables);
        let error_text = text(&output.stderr).to_string();
        assert_eq!(output.status.code(), Some(2), "{error_text}");
        assert!(
            error_text.contains(reason) && !error_text.contains("secret"),
            "{error_text}"
        );
    };
    let other = ["pub", "a", "x", "--profile", "other"];
    refused(&other, &[], "there is no profile other in ");
    refused(&other, &[], "it has live, test");
    let by_variable = [("CRORE_PROFILE", "other")];
    refused(&["sub", "a"], &by_variable, "there is no profile other");
    let wrong = ["pub", "a", "x", "--profile", "test"];
    refused(&wrong, &[], "server of profile test: ");
    for (line, profiles) in [
        (3, "[live]\ntoken = 'secret'\nserver_url = 'x'\n"),
        (1, "token = 'secret'\n"),
        (2, "[live]\ntoken = secret\n"),
    ] {
        let unreadable = Configuration::configuration_with("unreadable", profiles);
        let output = unreadable.run(&["pub", "a", "x", "--profile", "live"], &[]);
        let error_text = text(&output.stderr);
        assert!(
            error_text.contains(&format!("line {line} cannot be used")),
            "{error_text}"
        );
        assert!(!error_text.contains("secret"), "{error_text}");
    }
}

/// The admin port refuses requests without its token, so a success shows that the token was sent.
#[test]
fn token_goes_to_the_server_of_its_own_source_only() {
    const TOKEN: &str = "0123456789abcdef";
    let server = Server::with_admin(&format!("[admin]\ntoken = '{TOKEN}'\n"));
    let url = format!("http://{}", server.admin());
    let configuration = Configuration::configuration_with(
        "source",
        &format!(
            "[other]\nadmin_url = '{NOBODY}'\nadmin_token = '{TOKEN}'\n[bare]\nadmin_url = '{url}'\n[token]\nadmin_token = '{TOKEN}'\n"
        ),
    );
    let is_let_in = |args: &[&str], variables: &[(&str, &str)]| {
        let args = [&["admin", "stats"][..], args].concat();
        configuration.run(&args, variables).status.success()
    };
    let of_variables = [("CRORE_ADMIN_URL", &url[..]), ("CRORE_ADMIN_TOKEN", TOKEN)];
    assert!(is_let_in(&[], &of_variables));
    assert!(is_let_in(&["--profile", "token", "--url", &url], &[]));
    // Neither the token of another profile, nor the token in a variable, is sent to the profile's server.
    assert!(!is_let_in(&["--profile", "other", "--url", &url], &[]));
    assert!(!is_let_in(&["--profile", "bare"], &of_variables));
    let default = [("CRORE_PROFILE", "other"), ("CRORE_ADMIN_URL", &url[..])];
    assert!(!is_let_in(&[], &default));
}

#[test]
fn tokens_that_others_may_read_are_warned_of() {
    let server = Server::with("");
    let profiles = format!(
        "[live]\nserver = 'http://{}'\ntoken = 'abc'\n",
        server.address()
    );
    let configuration = Configuration::configuration_with("mode", &profiles);
    let published = ["pub", "a", "x", "--profile", "live"];
    let silent = configuration.run(&published, &[]);
    assert!(!text(&silent.stderr).contains("chmod"), "{silent:?}");
    let file = configuration.0.join("crore/profiles.toml");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("everybody's");
    let warned = configuration.run(&published, &[]);
    assert!(text(&warned.stderr).contains("chmod 600"), "{warned:?}");
}
