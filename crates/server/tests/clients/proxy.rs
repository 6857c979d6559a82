//! A TCP relay that stands for the network between a reconnecting client and the server. A test can cut it, or it cuts connections by
//! itself in the middle of a message.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of the server that a chopping relay lets through before it cuts, for one connection after the other. Each number is larger than
/// the head of an answer, and falls in the middle of a message.
const CHOPS: [usize; 8] = [700, 1_501, 903, 2_222, 610, 1_207, 3_001, 805];

pub struct Proxy {
    address: SocketAddr,
    is_up: Arc<AtomicBool>,
    cuts: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// Starts a relay to `server` on its own port. Its threads end with the test program.
    pub fn to(server: SocketAddr) -> Proxy {
        Proxy::start(server, false)
    }

    /// Starts a relay that ends every connection after some bytes of the server.
    pub fn chopping(server: SocketAddr) -> Proxy {
        Proxy::start(server, true)
    }

    fn start(server: SocketAddr, chops: bool) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let proxy = Proxy {
            address,
            is_up: Arc::new(AtomicBool::new(true)),
            cuts: Arc::default(),
            connections: Arc::default(),
        };
        let (is_up, connections) = (Arc::clone(&proxy.is_up), Arc::clone(&proxy.connections));
        let cuts = Arc::clone(&proxy.cuts);
        std::thread::spawn(move || {
            let limits = CHOPS.iter().cycle().map(|limit| chops.then_some(*limit));
            for (client, limit) in listener.incoming().map_while(Result::ok).zip(limits) {
                // While the network or the server is down, a new connection is closed at once.
                if is_up.load(Ordering::SeqCst)
                    && let Ok(upstream) = TcpStream::connect(server)
                {
                    let address =
                        [&client, &upstream].map(|stream| stream.try_clone().expect("a clone"));
                    connections.lock().expect("the list").extend(address);
                    relay(&client, &upstream, None, &cuts);
                    relay(&upstream, &client, limit, &cuts);
                }
            }
        });
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Ends every connection and accepts no new one.
    pub fn cut(&self) {
        self.is_up.store(false, Ordering::SeqCst);
        for stream in self.connections.lock().expect("the list").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Number of connections that the relay has cut by itself.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }

    pub fn mend(&self) {
        self.is_up.store(true, Ordering::SeqCst);
    }
}

/// Relays all bytes between a client and a server.
pub fn pass(client: &TcpStream, server: SocketAddr) {
    let upstream = TcpStream::connect(server).expect("the server");
    let cuts = Arc::default();
    relay(client, &upstream, None, &cuts);
    relay(&upstream, client, None, &cuts);
}

fn relay(from: &TcpStream, to: &TcpStream, limit: Option<usize>, cuts: &Arc<AtomicUsize>) {
    let (mut from, mut to) = (
        from.try_clone().expect("a clone"),
        to.try_clone().expect("a clone"),
    );
    let cuts = Arc::clone(cuts);
    std::thread::spawn(move || {
        let (mut bytes, mut remaining) = ([0; 16 << 10], limit.unwrap_or(usize::MAX));
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let part = count.min(remaining);
            remaining -= part;
            if to.write_all(&bytes[..part]).is_err() {
                break;
            }
            if remaining == 0 {
                cuts.fetch_add(1, Ordering::SeqCst);
                let _ = from.shutdown(Shutdown::Both);
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
