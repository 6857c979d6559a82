//! A TCP relay that can be cut: the network between a client that reconnects by itself and the server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub struct Proxy {
    address: SocketAddr,
    up: Arc<AtomicBool>,
    held: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// Listens on a port of its own and relays to `server`. Its threads end with the test program.
    pub fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let proxy = Proxy {
            address,
            up: Arc::new(AtomicBool::new(true)),
            held: Arc::default(),
        };
        let (up, held) = (Arc::clone(&proxy.up), Arc::clone(&proxy.held));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // While the network is down a connection is closed at once.
                if up.load(Ordering::SeqCst) {
                    let upstream = TcpStream::connect(server).expect("the server");
                    let own =
                        [&client, &upstream].map(|stream| stream.try_clone().expect("a clone"));
                    held.lock().expect("the list").extend(own);
                    relay(&client, &upstream);
                    relay(&upstream, &client);
                }
            }
        });
        proxy
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Ends every connection and lets no new one through.
    pub fn cut(&self) {
        self.up.store(false, Ordering::SeqCst);
        for stream in self.held.lock().expect("the list").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.up.store(true, Ordering::SeqCst);
    }
}

fn relay(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (
        from.try_clone().expect("a clone"),
        to.try_clone().expect("a clone"),
    );
    std::thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
