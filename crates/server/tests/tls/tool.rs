//! Makes certificates in a directory of the test, and runs commands that use them.

use crate::support::program::await_output;
use crate::support::{PATIENCE, Server};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};

/// A root certificate, and files with certificates that it has signed.
pub struct Certificates {
    directory: PathBuf,
    root: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Makes a new root, and a server certificate for `localhost` and 127.0.0.1.
    pub fn new() -> Certificates {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("crore-tls-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut params = CertificateParams::new([]).expect("no names");
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Root {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = CertifiedIssuer::self_signed(params, key).expect("a root");
        let certificates = Certificates { directory, root };
        certificates.write("ca.pem", &certificates.root.pem());
        certificates.sign("server", ExtendedKeyUsagePurpose::ServerAuth);
        certificates
    }

    /// Writes `NAME.pem` and `NAME.key`, for `localhost` and 127.0.0.1.
    pub fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) {
        self.sign_for(&["localhost", "127.0.0.1"], name, purpose);
    }

    /// Writes `NAME.pem` and `NAME.key`, for these host names.
    pub fn sign_for(&self, names: &[&str], name: &str, purpose: ExtendedKeyUsagePurpose) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.root).expect("a certificate");
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.write(&format!("{name}.pem"), &signed.pem());
    }

    /// The root, which signs the others.
    pub fn root(&self) -> &CertifiedIssuer<'static, KeyPair> {
        &self.root
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// The settings: `[tls]` with the server certificate, and these lines.
    pub fn settings(&self, extra: &str) -> String {
        let (certificate, key) = (self.path("server.pem"), self.path("server.key"));
        format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n{extra}\n")
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Runs a command to its end, with this input on its standard input.
pub fn run(program: &str, args: &[&str], input: &[u8]) -> Output {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{program}: {error}"));
    let mut pipe = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A program that ends early does not read all of its input, so a failed write is no error.
        let _ = pipe.write_all(&input);
    });
    let output = await_output(child);
    writer.join().expect("the writer");
    output
}

/// Runs `curl`, which trusts the root, for a path of the server. Panics if it fails.
pub fn curl(server: &Server, certificates: &Certificates, path: &str, args: &[&str]) -> Vec<u8> {
    let output = try_curl(server, certificates, path, args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {path} {args:?}: {complaint}");
    output.stdout
}

pub fn try_curl(server: &Server, certificates: &Certificates, path: &str, args: &[&str]) -> Output {
    let url = format!("https://{}{path}", server.address());
    let root = certificates.path("ca.pem");
    let fixed = ["-sS", "--max-time", "20", "--cacert", &root];
    run("curl", &[&fixed, args, &[url.as_str()]].concat(), b"")
}

/// `openssl s_client`, which trusts the root, and which a test controls through its standard input.
pub struct Interactive {
    child: Child,
    input: ChildStdin,
    output_lines: Receiver<String>,
}

impl Interactive {
    /// Starts `openssl s_client`, connected with this TLS version.
    pub fn start(server: &Server, certificates: &Certificates, version: &str) -> Interactive {
        let (address, root) = (server.address().to_string(), certificates.path("ca.pem"));
        let command = format!(
            "exec openssl s_client -connect {address} -CAfile {root} {version} -crlf -legacy_renegotiation 2>&1"
        );
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("openssl");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, output_lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output.split(b'\n').map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(String::from_utf8_lossy(&line).into_owned())));
        });
        let client = Interactive {
            child,
            input,
            output_lines,
        };
        client.await_line("Verify return code: 0");
        client
    }

    /// Writes a command, and waits until the output contains `answer`. The client reads each write separately.
    pub fn type_line(&mut self, words: &str, answer: &str) {
        self.input.write_all(words.as_bytes()).expect("it reads");
        self.await_line(answer);
    }

    fn await_line(&self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line = self.output_lines.recv_timeout(PATIENCE).expect(part);
        }
    }
}

impl Drop for Interactive {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The output of `openssl s_client`, which trusts the root, for this input.
pub fn s_client(
    server: &Server,
    certificates: &Certificates,
    args: &[&str],
    input: &[u8],
) -> String {
    let (address, root) = (server.address().to_string(), certificates.path("ca.pem"));
    let fixed = ["s_client", "-connect", &address, "-CAfile", &root];
    let output = run("openssl", &[&fixed, args].concat(), input);
    let all_output = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all_output).into_owned()
}

/// Writes a file into the test's directory. Returns its path.
pub fn file(certificates: &Certificates, name: &str, bytes: &[u8]) -> String {
    let path = certificates.path(name);
    std::fs::write(Path::new(&path), bytes).expect("a file");
    path
}
