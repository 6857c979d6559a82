#!/bin/sh
# Makes crore_VERSION_ARCH.deb of a program that is built already:
#   cargo build --release --locked && packaging/debian/build.sh target/release/crore OUT_DIR
set -eu
program=$1
out=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -D -m 755 "$program" "$root/usr/bin/crore"
strip --strip-debug "$root/usr/bin/crore" 2>/dev/null || true
install -D -m 644 "$here/packaging/systemd/crore.service" "$root/usr/lib/systemd/system/crore.service"
# It will hold secrets. dpkg knows no user of ours yet, so postinst gives the file to the group crore.
install -D -m 640 "$here/packaging/crore.toml" "$root/etc/crore/crore.toml"
chmod 755 "$root/etc/crore"
# The pages for users with the files that they name; what is about the source stays there.
doc=$root/usr/share/doc/crore
install -d "$doc"
cp -R "$here"/docs/*.md "$here"/docs/crore.example.toml "$here"/docs/crore.schema.json "$here"/docs/proxies "$here"/docs/console \
    "$here"/docs/pictures "$here"/examples "$here"/LICENSE-* "$doc/"
sed -i 's|](\.\./examples/|](examples/|g' "$doc"/*.md
find "$doc" -name '*.md' -path '*/examples/*' -exec sed -i 's|](\.\./\.\./docs/|](../../|g' {} +
chmod -R u=rwX,go=rX "$doc"
"$program" man "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
install -d "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
    "$root/usr/share/fish/vendor_completions.d"
"$program" completions bash >"$root/usr/share/bash-completion/completions/crore"
"$program" completions zsh >"$root/usr/share/zsh/vendor-completions/_crore"
"$program" completions fish >"$root/usr/share/fish/vendor_completions.d/crore.fish"

version=$("$program" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
# The C library that the program was linked with, or a later one.
glibc=$(objdump -T "$program" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -V | tail -n 1)
install -d "$root/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@DEPENDS@/libc6 (>= ${glibc:-2.36}), adduser/" \
    "$here/packaging/debian/control.in" >"$root/DEBIAN/control"
echo /etc/crore/crore.toml >"$root/DEBIAN/conffiles"
install -m 755 "$here/packaging/debian/postinst" "$here/packaging/debian/prerm" "$here/packaging/debian/postrm" "$root/DEBIAN/"
dpkg-deb --root-owner-group --build "$root" "$out/crore_${version}_${arch}.deb"
