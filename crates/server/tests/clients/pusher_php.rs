//! Tests Pusher's server library for PHP, which Laravel uses. `cargo xtask conformance pusher` fetches it; no other run has it.

use crate::client::{Client, path_of};
use crate::pusher::{SECRET, server_library_signs_publishes_and_checks_webhooks};

#[test]
#[ignore = "needs what `cargo xtask conformance pusher` prepares"]
fn server_library_for_php_signs_publishes_and_checks_webhooks() {
    let script = path_of("pusher_server.php");
    let library = Client::start("php".into(), &[&script, "7", "chat-key", SECRET]);
    server_library_signs_publishes_and_checks_webhooks(library);
}
