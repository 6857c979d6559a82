//! The additions to the packaged unit that `docs/XDP.md` shows.

/// The text of the file that `systemctl edit crore` makes.
pub fn text() -> &'static str {
    let page = include_str!("../../../../docs/XDP.md");
    let block = page.split("```ini\n").nth(1);
    let block = block.and_then(|rest| rest.split("```").next());
    block.expect("the page shows the additions")
}

/// The capabilities in it, such as `CAP_BPF`.
#[allow(dead_code, reason = "one of the tests only checks the text")]
pub fn capabilities() -> Vec<&'static str> {
    let mut lines = text().lines();
    let line = lines.find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    line.expect("the capabilities").split(' ').collect()
}
