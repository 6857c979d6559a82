//! Tests the files of `examples/containers` and the route of `docs/proxies/gateway.yaml`. Their ports, users, paths and times must fit the
//! image and the settings. The server must run with the settings in them, and answer the probes as the files declare.
//!
//! Docker and Kubernetes themselves are deliberately not tested.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use toml::Table;

use crate::support::http::publish;
use crate::support::port::raw;
use crate::support::{Server, program};

fn project(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../{path}"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents of a YAML file.
fn documents(name: &str) -> Vec<Value> {
    at_path(&format!("examples/containers/{name}"))
}

fn at_path(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&project(path)).expect(path)
}

fn text<'v>(value: &'v Value, at: &str) -> &'v str {
    let actual = value.pointer(at).and_then(Value::as_str);
    actual.unwrap_or_else(|| panic!("{at} in {value}"))
}

fn number(value: &Value, at: &str) -> u64 {
    let actual = value.pointer(at).and_then(Value::as_u64);
    actual.unwrap_or_else(|| panic!("{at} in {value}"))
}

/// The words after this instruction in the image's Containerfile.
fn image(instruction: &str) -> String {
    let file = project("packaging/oci/Containerfile");
    let mut lines = file
        .lines()
        .filter_map(|line| line.strip_prefix(instruction));
    lines.next_back().expect(instruction).trim().to_string()
}

/// The port after the last colon.
fn port(address: &str) -> u64 {
    let (_, port) = address.trim_matches('"').rsplit_once(':').expect("a port");
    port.parse().expect("a port")
}

/// The settings of a container, the admin port that they give, and the token of that port.
struct Settings {
    text: String,
    admin: u64,
    token: String,
    directory: PathBuf,
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Settings {
    /// Parses the settings, and checks that they fit the image: its port for clients, its directory for the state.
    fn new(text: &str) -> Settings {
        let table: Table = text.parse().expect("settings");
        assert!(!table.contains_key("listen"), "the image's own flag counts");
        let (state, admin) = (&table["state"], &table["admin"]);
        let directory = state["directory"].as_str().expect("a directory");
        assert!(directory.starts_with(&image("VOLUME")), "{directory}");
        let name = format!("crore-containers-{}-{}", std::process::id(), text.len());
        Settings {
            directory: std::env::temp_dir().join(name),
            text: text.to_string(),
            admin: port(admin["listen"].as_str().expect("an address")),
            token: admin["token"].as_str().expect("a token").to_string(),
        }
    }

    /// Starts a server with these settings, on other ports and with its state in a directory of this test.
    fn serve(&self) -> Server {
        let volume_path = self.directory.to_str().expect("text");
        let server = Server::with_admin(&self.text.replace("/var/lib/crore/state", volume_path));
        let answer = publish(&server, "news", "by any client");
        assert_eq!(answer.status, 202, "{}", answer.text());
        server
    }

    /// The seconds that a stop may take with these settings.
    fn stop_s(&self) -> u64 {
        let defaults: Table = project("docs/crore.example.toml")
            .parse()
            .expect("settings");
        let settings: Table = self.text.parse().expect("settings");
        let deadline = |table: &str| {
            let deadline_of =
                |settings: &Table| settings.get(table)?.get("deadline_s")?.as_integer();
            deadline_of(&settings)
                .or_else(|| deadline_of(&defaults))
                .expect("a deadline")
        };
        u64::try_from(deadline("drain") + deadline("state")).expect("seconds")
    }
}

/// The port on which the image serves clients.
fn clients() -> u64 {
    let exposed = image("EXPOSE").parse().expect("a port");
    let command: Vec<String> = serde_json::from_str(&image("ENTRYPOINT")).expect("words");
    assert_eq!(port(command.last().expect("an address")), exposed);
    exposed
}

#[test]
fn compose_file_fits_the_image_and_its_settings() {
    let settings = Settings::new(&project("examples/containers/crore.toml"));
    let file = &documents("compose.yaml")[0];
    let service = &file["services"]["crore"];
    let built = format!(
        "examples/containers/{}/{}",
        text(service, "/build/context"),
        text(service, "/build/dockerfile")
    );
    assert!(project(&built).contains("ENTRYPOINT"));
    let published = [text(service, "/ports/0"), text(service, "/ports/1")];
    assert_eq!(published.map(port), [clients(), settings.admin]);
    assert!(image("ENTRYPOINT").contains("\"/etc/crore/crore.toml\""));
    assert_eq!(
        text(service, "/volumes/0"),
        "./crore.toml:/etc/crore/crore.toml:ro"
    );
    let (volume, volume_path) = text(service, "/volumes/1")
        .split_once(':')
        .expect("a place");
    assert!(file["volumes"].get(volume).is_some());
    assert_eq!(volume_path, image("VOLUME"));
    let stop_s: u64 = text(service, "/stop_grace_period")
        .trim_end_matches('s')
        .parse()
        .expect("seconds");
    assert!(stop_s > settings.stop_s(), "{stop_s}");
    // The health check uses the token of the container's environment.
    let token = text(service, "/environment/CRORE_ADMIN_TOKEN");
    assert_eq!(token, settings.token);
    let check: Vec<String> =
        serde_json::from_value(service["healthcheck"]["test"].clone()).expect("words");
    assert_eq!(check[..2], ["CMD", "crore"]);
    let server = settings.serve();
    let output = Command::new(program())
        .args(&check[2..])
        .env("CRORE_ADMIN_URL", format!("http://{}", server.admin()))
        .env("CRORE_ADMIN_TOKEN", token)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn kubernetes_file_fits_the_image_and_its_settings() {
    let [secret, stateful_set, service, pods] = &documents("kubernetes.yaml")[..] else {
        panic!("a Secret, a StatefulSet, a Service for clients and one for the names of pods");
    };
    let settings = Settings::new(text(secret, "/stringData/crore.toml"));
    let pod = &stateful_set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(number(container, "/ports/0/containerPort"), clients());
    assert_eq!(number(container, "/ports/1/containerPort"), settings.admin);
    assert!(number(pod, "/terminationGracePeriodSeconds") > settings.stop_s());
    let user = image("USER");
    assert_eq!(
        format!(
            "{}:{}",
            pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
        ),
        user
    );
    assert!(user.ends_with(&pod["securityContext"]["fsGroup"].to_string()));
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let mount_paths: Vec<&str> = mounts
        .iter()
        .map(|mount| text(mount, "/mountPath"))
        .collect();
    assert_eq!(mount_paths, ["/etc/crore", &image("VOLUME")]);
    assert_eq!(text(pod, "/volumes/0/name"), text(&mounts[0], "/name"));
    assert_eq!(
        text(pod, "/volumes/0/secret/secretName"),
        text(secret, "/metadata/name")
    );
    assert_eq!(
        text(stateful_set, "/spec/volumeClaimTemplates/0/metadata/name"),
        text(&mounts[1], "/name")
    );
    let labels = &stateful_set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&stateful_set["spec"]["selector"]["matchLabels"], labels);
    for service in [service, pods] {
        assert_eq!(&service["spec"]["selector"], labels);
    }
    // A StatefulSet takes the names of its pods from a Service without an address.
    assert_eq!(
        stateful_set["spec"]["serviceName"],
        pods["metadata"]["name"]
    );
    assert_eq!(text(pods, "/spec/clusterIP"), "None");
    for (service, port) in [(service, 0), (pods, 1)] {
        let number_of = |value: &Value| value.as_u64().expect("a number");
        let at = &service["spec"]["ports"][0];
        let of_container = &container["ports"][port];
        assert_eq!(at["targetPort"], of_container["name"]);
        assert_eq!(
            number_of(&at["port"]),
            number_of(&of_container["containerPort"])
        );
    }
    // The Pod Security Standard `restricted` demands these fields.
    let (of_pod, of_container) = (&pod["securityContext"], &container["securityContext"]);
    assert_eq!(text(of_pod, "/seccompProfile/type"), "RuntimeDefault");
    assert_eq!(of_pod["runAsNonRoot"], true);
    assert_eq!(of_container["allowPrivilegeEscalation"], false);
    assert_eq!(text(of_container, "/capabilities/drop/0"), "ALL");
    // A kubelet sends its probes to the pod's address.
    let server = settings.serve();
    let host = format!("Host: 10.1.2.3:{}\r\n", settings.admin);
    for (probe, path) in [
        ("startupProbe", "/readyz"),
        ("readinessProbe", "/readyz"),
        ("livenessProbe", "/healthz"),
    ] {
        let probe_request = &container[probe]["httpGet"];
        assert_eq!(
            text(probe_request, "/port"),
            text(container, "/ports/1/name")
        );
        assert_eq!(text(probe_request, "/path"), path);
        let answer = raw(server.admin(), &format!("GET {path}"), &host, None);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    assert_eq!(raw(server.admin(), "GET /metrics", &host, None).status, 403);
}

/// The route leads the paths of clients to the Service of `kubernetes.yaml`, and its timeouts end no stream.
#[test]
fn gateway_leads_to_the_service_of_the_kubernetes_file() {
    let [gateway, route] = &at_path("docs/proxies/gateway.yaml")[..] else {
        panic!("a Gateway and an HTTPRoute");
    };
    let services = documents("kubernetes.yaml");
    let service = services.iter().find(|it| it["kind"] == "Service");
    let service = service.expect("a Service for clients");
    assert_eq!(
        route["spec"]["parentRefs"][0]["name"],
        gateway["metadata"]["name"]
    );
    let host = &gateway["spec"]["listeners"][0]["hostname"];
    assert_eq!(&route["spec"]["hostnames"][0], host);
    let rule = &route["spec"]["rules"][0];
    let to = &rule["backendRefs"][0];
    assert_eq!(to["name"], service["metadata"]["name"]);
    assert_eq!(to["port"], service["spec"]["ports"][0]["port"]);
    assert_eq!(text(rule, "/timeouts/request"), "0s");
    let matches = rule["matches"].as_array().expect("matches");
    let named: Vec<&str> = matches
        .iter()
        .map(|one| {
            assert_eq!(text(one, "/path/type"), "PathPrefix");
            text(one, "/path/value")
        })
        .collect();
    let defaults: Table = project("docs/crore.example.toml")
        .parse()
        .expect("settings");
    for (key, value) in defaults["http"].as_table().expect("a table") {
        let defaults = value.as_array().filter(|_| key.ends_with("_paths"));
        for path in defaults.into_iter().flatten() {
            let path = path.as_str().expect("a path");
            assert!(named.contains(&path), "{path}");
        }
    }
    assert!(named.contains(&"/mqtt"));
}
