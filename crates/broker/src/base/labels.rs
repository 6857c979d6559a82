//! A macro for enums whose variants operators see: each variant has a label (for example the value of a metric's label) and a description.

/// Defines the enum. A row is one line: variant, label, description.
macro_rules! labels {
    ($(#[$meta:meta])* pub enum $type:ident { $($name:ident, $label:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $(#[doc = $text] $name,)*
        }

        impl $type {
            /// All variants, in order.
            pub const ALL: [$type; [$($label),*].len()] = [$($type::$name,)*];

            /// All labels with their descriptions, in Markdown.
            pub const LABELS: &str = concat!($("; `", $label, "`: ", $text),*);

            /// The label.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$name => $label,)*
                }
            }
        }
    };
}

pub(crate) use labels;
