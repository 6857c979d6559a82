#!/bin/sh
# Makes crore-VERSION-ARCH-linux.tar.gz and its SHA-256 of a program that is built already, for a machine without Rust and Debian's packages:
#   cargo build --release --locked && packaging/archive.sh target/release/crore OUT_DIR
set -eu
program=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
name=crore-$("$program" --version | cut -d' ' -f2)-$(uname -m)-linux
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/$name

install -D -m 755 "$program" "$root/crore"
strip --strip-debug "$root/crore" 2>/dev/null || true
install -D -m 644 "$here/packaging/systemd/crore.service" "$root/systemd/crore.service"
install -D -m 644 "$here/packaging/crore.toml" "$root/systemd/crore.toml"
install -d "$root/docs" "$root/completions" "$root/man/man1"
cp -R "$here"/docs/*.md "$here"/docs/crore.example.toml "$here"/docs/crore.schema.json "$here"/docs/proxies "$here"/docs/console \
    "$here"/docs/pictures "$root/docs/"
cp -R "$here"/examples "$root/"
cp "$here"/README.md "$here"/CHANGELOG.md "$here"/LICENSE-* "$root/"
"$program" man "$root/man/man1"
"$program" completions bash >"$root/completions/crore.bash"
"$program" completions zsh >"$root/completions/_crore"
"$program" completions fish >"$root/completions/crore.fish"
chmod -R u=rwX,go=rX "$root"

# The same program gives the same archive.
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
