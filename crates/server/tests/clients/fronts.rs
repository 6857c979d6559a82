//! Runs the proxies of `docs/proxies` (nginx, Caddy, HAProxy) in front of a real server. The samples are used as they are; only ports,
//! certificates and the site's directory are replaced.

use crate::client::Client;
use crate::support::{Server, hold_port, until};
use crore_net::kernel::listener::HeldPort;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The host name in the samples.
pub const HOST_NAME: &str = "push.example.com";
/// The source address of `curl`: a loopback address that is not a trusted proxy's.
pub const CLIENT_ADDRESS: &str = "127.0.0.5";

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

pub fn sample(name: &str) -> String {
    std::fs::read_to_string(project("docs/proxies").join(name)).expect("a sample")
}

/// Replaces `sample_value`, which the sample must contain, by `test_value`.
pub fn replace_in_sample(text: String, sample_value: &str, test_value: &str) -> String {
    assert!(
        text.contains(sample_value),
        "the sample names {sample_value}"
    );
    text.replace(sample_value, test_value)
}

/// A proxy in front of a server, with its own directory.
pub struct Front {
    child: Child,
    pub directory: PathBuf,
    /// The port on which the proxy listens.
    port: HeldPort,
    pub root_certificate: PathBuf,
    /// The status that the proxy answers while there is no server, except to requests for event streams.
    pub status_without_server: &'static str,
}

impl Front {
    /// Makes a directory that the proxy's user may read, with a site in it.
    fn directory() -> PathBuf {
        static DIRECTORIES: AtomicU32 = AtomicU32::new(0);
        let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("crore-proxy-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(directory.join("site")).expect("a directory");
        let page = project("examples/quickstart/index.html");
        std::fs::copy(page, directory.join("site/index.html")).expect("the example");
        directory
    }

    pub fn nginx(server: &Server) -> Front {
        let (directory, port) = (Front::directory(), hold_port());
        let path_in_directory = |name: &str| directory.join(name).display().to_string();
        let generated =
            rcgen::generate_simple_self_signed([HOST_NAME.to_string()]).expect("a certificate");
        std::fs::write(path_in_directory("own.pem"), generated.cert.pem()).expect("a file");
        std::fs::write(
            path_in_directory("own.key"),
            generated.signing_key.serialize_pem(),
        )
        .expect("a file");
        let site_settings = for_installed_version(sample("nginx.conf"));
        let site_settings = replace_in_sample(
            site_settings,
            "    listen 443 ",
            &format!("    listen {} ", port.addr()),
        );
        let site_settings = replace_in_sample(
            site_settings,
            "127.0.0.1:8800",
            &server.address().to_string(),
        );
        let site_settings = replace_in_sample(
            site_settings,
            "/etc/ssl/push.example.com.pem",
            &path_in_directory("own.pem"),
        );
        let site_settings = replace_in_sample(
            site_settings,
            "/etc/ssl/push.example.com.key",
            &path_in_directory("own.key"),
        );
        let site_settings =
            replace_in_sample(site_settings, "/var/www/html", &path_in_directory("site"));
        std::fs::write(path_in_directory("crore.conf"), site_settings).expect("a file");
        // The main settings around the sample, as on a production server, in the test's own directory.
        let temp_path_settings: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {};\n", path_in_directory(name)))
            .concat();
        let main = std::fs::read_to_string(project("examples/production/nginx.conf"));
        let main = replace_in_sample(
            main.expect("a file"),
            "/run/nginx.pid",
            &path_in_directory("pid"),
        );
        let main = replace_in_sample(main, "/var/log/nginx/", &path_in_directory(""));
        let main = replace_in_sample(
            main,
            "/etc/nginx/conf.d/*.conf",
            &path_in_directory("crore.conf"),
        );
        let main = replace_in_sample(main, "http {\n", &format!("http {{\n{temp_path_settings}"));
        std::fs::write(path_in_directory("nginx.conf"), main).expect("a file");
        let mut command = Command::new("/usr/sbin/nginx");
        command.args([
            "-p",
            &path_in_directory(""),
            "-e",
            &path_in_directory("error.log"),
            "-c",
            &path_in_directory("nginx.conf"),
            "-g",
            "daemon off; master_process off;",
        ]);
        Front::start(command, directory.clone(), port, directory.join("own.pem"))
    }

    pub fn caddy(server: &Server) -> Front {
        Front::caddy_with(server, sample("Caddyfile"))
    }

    /// Caddy with a changed sample.
    pub fn caddy_with(server: &Server, site_settings: String) -> Front {
        let (directory, port) = (Front::directory(), hold_port());
        let path_in_directory = |name: &str| directory.join(name).display().to_string();
        let site_settings = replace_in_sample(
            site_settings,
            "127.0.0.1:8800",
            &server.address().to_string(),
        );
        let site_settings =
            replace_in_sample(site_settings, "/var/www/html", &path_in_directory("site"));
        std::fs::write(path_in_directory("site.caddy"), site_settings).expect("a file");
        // Caddy makes certificates of its own root, instead of asking the network for some.
        let main = format!(
            "{{\nadmin off\nlocal_certs\nskip_install_trust\nauto_https disable_redirects\nhttps_port {}\n\
             default_bind 127.0.0.1\n}}\nimport {}\n",
            port.addr().port(),
            path_in_directory("site.caddy")
        );
        std::fs::write(path_in_directory("Caddyfile"), main).expect("a file");
        let mut command = Command::new("caddy");
        command
            .args([
                "run",
                "--adapter",
                "caddyfile",
                "--config",
                &path_in_directory("Caddyfile"),
            ])
            .env("XDG_DATA_HOME", path_in_directory("data"))
            .env("XDG_CONFIG_HOME", path_in_directory("config"))
            .env("HOME", path_in_directory("home"));
        let root_certificate = directory.join("data/caddy/pki/authorities/local/root.crt");
        Front::start(command, directory, port, root_certificate)
    }

    pub fn haproxy(server: &Server) -> Front {
        Front::haproxy_with(server, sample("haproxy.cfg"))
    }

    /// HAProxy with a changed sample.
    pub fn haproxy_with(server: &Server, settings: String) -> Front {
        let (directory, port) = (Front::directory(), hold_port());
        let path_in_directory = |name: &str| directory.join(name).display().to_string();
        let generated =
            rcgen::generate_simple_self_signed([HOST_NAME.to_string()]).expect("a certificate");
        let certificate = generated.cert.pem();
        std::fs::write(path_in_directory("own.pem"), &certificate).expect("a file");
        let certificate_and_key = certificate + &generated.signing_key.serialize_pem();
        std::fs::write(path_in_directory("both.pem"), certificate_and_key).expect("a file");
        std::fs::write(
            path_in_directory("crore-retry.http"),
            sample("crore-retry.http"),
        )
        .expect("a file");
        let text = replace_in_sample(settings, "bind :443", &format!("bind {}", port.addr()));
        let text = replace_in_sample(text, "127.0.0.1:8800", &server.address().to_string());
        let text = replace_in_sample(
            text,
            "/etc/haproxy/push.example.com.pem",
            &path_in_directory("both.pem"),
        );
        let text = replace_in_sample(
            text,
            "/etc/haproxy/crore-retry.http",
            &path_in_directory("crore-retry.http"),
        );
        let text = replace_in_sample(text, "127.0.0.1:8080", &serve_site(directory.join("site")));
        std::fs::write(path_in_directory("haproxy.cfg"), text).expect("a file");
        let mut command = Command::new("/usr/sbin/haproxy");
        command.args(["-db", "-f", &path_in_directory("haproxy.cfg")]);
        let root_certificate = directory.join("own.pem");
        let mut front = Front::start(command, directory, port, root_certificate);
        front.status_without_server = "503";
        front
    }

    fn start(
        mut command: Command,
        directory: PathBuf,
        port: HeldPort,
        root_certificate: PathBuf,
    ) -> Front {
        let log = std::fs::File::create(directory.join("output")).expect("a file");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut front = Front {
            child,
            directory,
            port,
            root_certificate,
            status_without_server: "502",
        };
        // Caddy's certificate exists a moment after its root.
        until(&format!("{command:?}"), || {
            let status = front.child.try_wait().expect("its state");
            assert!(status.is_none(), "{command:?}: {status:?}\n{}", front.log());
            let is_open =
                TcpStream::connect(front.addr()).is_ok() && front.root_certificate.exists();
            is_open
                && front
                    .try_curl(&["-o", "/dev/null", &url("/")])
                    .status
                    .success()
        });
        front
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    fn log(&self) -> String {
        let read = |name| std::fs::read_to_string(self.directory.join(name)).unwrap_or_default();
        read("output") + &read("error.log")
    }

    /// Arguments with which `curl` connects to the proxy by its name, from the client's address.
    fn curl_args(&self) -> Vec<String> {
        let to = format!("{HOST_NAME}:443:{}", self.addr());
        let root_certificate = self.root_certificate.display().to_string();
        [
            "-sS",
            "--max-time",
            "60",
            "--interface",
            CLIENT_ADDRESS,
            "--connect-to",
            &to,
            "--cacert",
            &root_certificate,
        ]
        .map(str::to_string)
        .into()
    }

    fn try_curl(&self, args: &[&str]) -> Output {
        let output = Command::new("curl")
            .args(self.curl_args())
            .args(args)
            .output();
        output.expect("curl starts")
    }

    /// The output of `curl`, which must succeed.
    pub fn curl(&self, args: &[&str]) -> String {
        let output = self.try_curl(args);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{args:?}: {complaint}\n{}",
            self.log()
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// Starts `curl` as a client that stays connected.
    pub fn start_curl(&self, args: &[&str]) -> Client {
        let connect_args = self.curl_args();
        let connect_args: Vec<&str> = connect_args.iter().map(String::as_str).collect();
        Client::start("curl".into(), &[&connect_args[..], &["-N"], args].concat())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The sample for nginx 1.25.1 and later, changed for an older nginx as the sample's comment says.
fn for_installed_version(sample: String) -> String {
    let output = Command::new("/usr/sbin/nginx").arg("-v").output();
    let nginx_output = String::from_utf8(output.expect("nginx starts").stderr).expect("text");
    let version = nginx_output.trim().rsplit('/').next().expect("a version");
    let mut numbers = version
        .split(['.', ' '])
        .map(|part| part.parse().unwrap_or(0));
    let version: [u32; 3] = [0; 3].map(|_| numbers.next().unwrap_or(0));
    if version >= [1, 25, 1] {
        return sample;
    }
    let older_line = sample.split_once("and write: ").expect("the older line").1;
    let older_line = older_line.lines().next().expect("a line").to_string();
    let sample = replace_in_sample(sample, "    http2 on;\n", "");
    replace_in_sample(sample, "    listen 443 ssl;", &format!("    {older_line}"))
}

/// Serves the files of this directory. Returns the address. The thread ends with the test program.
fn serve_site(directory: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request_line = lines.next().unwrap_or_default();
            let path = request_line.split([' ', '?']).nth(1).unwrap_or("/");
            let name = match path.trim_start_matches('/') {
                "" => "index.html",
                name => name,
            };
            let page = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close";
            let _ = write!(
                stream,
                "{head}\r\nContent-Length: {}\r\n\r\n{page}",
                page.len()
            );
        }
    });
    address
}

pub fn url(path: &str) -> String {
    format!("https://{HOST_NAME}{path}")
}
