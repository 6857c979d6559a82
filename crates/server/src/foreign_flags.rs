//! Recognises flags and commands of other tools that people try with `crore`. The help does not show them. The error says what to write
//! instead.

use std::ffi::OsString;
use std::io::Write as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

use crate::http_client::server::without_credentials;

const CLIENT_COMMANDS: &[&str] = &["pub", "sub", "history"];
const TOPIC_COMMANDS: &[&str] = &[
    "admin topic",
    "admin purge",
    "admin delete",
    "admin messages",
];

const MINT_COMMANDS: &[&str] = &["token mint"];

/// A flag of other tools.
struct ForeignFlag {
    /// The commands of `crore` with which people try the flag.
    commands: &'static [&'static str],
    short: Option<char>,
    /// The long name. Empty for a positional argument.
    long: &'static str,
    /// What to write instead. `{}` stands for the flag's value.
    remedy: &'static str,
}

const fn flag(
    commands: &'static [&'static str],
    short: Option<char>,
    long: &'static str,
    remedy: &'static str,
) -> ForeignFlag {
    ForeignFlag {
        commands,
        short,
        long,
        remedy,
    }
}

#[rustfmt::skip]
const FLAGS: &[ForeignFlag] = &[
    flag(&["pub"], Some('t'), "topic", "the topic stands by itself: crore pub {} MESSAGE"),
    flag(&["pub"], Some('m'), "message", "the message stands behind the topic: crore pub TOPIC {}"),
    flag(&["pub"], Some('q'), "qos", "a message is answered once it is published, as with QoS 1; leave it out"),
    flag(&["pub"], Some('p'), "port", "the port stands in the URL: --server http://127.0.0.1:{}"),
    flag(&["sub"], None, "port", "the port stands in the URL: --server http://127.0.0.1:{}"),
    flag(&["history"], Some('p'), "port", "the port stands in the URL: --server http://127.0.0.1:{}"),
    flag(CLIENT_COMMANDS, None, "host", "the host stands in the URL: --server http://{}:8800"),
    flag(CLIENT_COMMANDS, Some('u'), "user", "a token says who you are: --token or CRORE_TOKEN (crore token mint --user {})"),
    flag(CLIENT_COMMANDS, Some('P'), "password", "a token says who you are: --token or CRORE_TOKEN (crore token mint)"),
    flag(&["sub"], Some('t'), "topic", "the topic stands by itself: crore sub {}"),
    flag(&["sub"], Some('f'), "filter", "a filter stands by itself: crore sub '{}'"),
    flag(&["sub"], Some('q'), "qos", "messages come once and in order, also after a lost connection; leave it out"),
    flag(&["sub"], Some('o'), "offset", "write --since: oldest, live, -N for the newest N, or the id of a message"),
    flag(&["history"], Some('t'), "topic", "the topic stands by itself: crore history {}"),
    flag(&["serve"], Some('p'), "port", "the port stands with its address: crore serve --listen 127.0.0.1:{}"),
    flag(&["serve"], None, "admin", "the address of the admin API and the console: --admin-listen {}"),
    flag(&["sub", "history"], None, "from", "that is --since: oldest, live, -N for the newest N, or the id of a message"),
    flag(&["serve"], None, "log-level", "that is --log {}"),
    flag(&["serve"], None, "host", "the address stands with its port: crore serve --listen {}:8800"),
    flag(&["serve"], None, "", "the settings file is named by a flag: crore serve --config {}"),
    flag(&["pub"], Some('n'), "null-message", "an empty message is '': crore pub TOPIC ''"),
    flag(&["pub"], Some('H'), "header", "the headers of a message have flags: --content-type, --event, --key, --ttl, --retain, --idempotency-key"),
    flag(&["pub"], None, "count", "each call publishes one message; --lines makes one of each line: seq {} | crore pub TOPIC --lines"),
    flag(&["doctor"], None, "", "the number has a flag: crore doctor --connections {}"),
    flag(&["pub"], None, "stdin", "without a message stdin is read; leave it out (--lines makes a message of each line)"),
    flag(CLIENT_COMMANDS, Some('b'), "broker", "the server is a URL: --server http://{}"),
    flag(CLIENT_COMMANDS, Some('i'), "id", "connections have no names here; leave it out"),
    flag(&["sub", "history"], None, "last", "that is --since -{}"),
    flag(&["sub", "history"], None, "tail", "write --since -{} for the newest {}"),
    flag(&["sub"], None, "from-beginning", "that is --since oldest"),
    flag(&["sub"], None, "all", "that is --since oldest; all topics are '#'"),
    flag(&["history"], None, "newest", "write --limit N for the newest N"),
    flag(&["history"], None, "after", "write --since with the id of a message"),
    flag(&["admin connections", "admin disconnect"], None, "client-id", "crore admin connections lists client ids, with the id that crore admin disconnect takes"),
    flag(&["admin disconnect"], None, "id", "the id stands by itself: crore admin disconnect {}"),
    flag(&["admin connections"], None, "id", "one connection: crore admin connection {}"),
    flag(&["admin disconnect"], None, "all", "name which: --filter '#' for all that subscribe, or --transport"),
    flag(&["admin messages"], None, "last", "that is --newest --limit {}"),
    flag(&["admin topics"], Some('f'), "filter", "the filter stands by itself: crore admin topics '{}'"),
    flag(&["admin messages"], Some('S'), "since", "write --newest with --limit N for the newest N, or --after OFFSET"),
    flag(TOPIC_COMMANDS, Some('t'), "topic", "the topic stands by itself"),
    flag(&["admin publish"], Some('t'), "topic", "the topic stands by itself: crore admin publish {} MESSAGE"),
    flag(&["admin publish"], Some('m'), "message", "the message stands behind the topic: crore admin publish TOPIC {}"),
    flag(MINT_COMMANDS, None, "secret", "the secret stands in a file, which the server reads too: --key secret.txt (openssl rand -hex 32 > secret.txt)"),
    flag(MINT_COMMANDS, None, "sub", "the user is --user {}; topics that may be subscribed to are --subscribe FILTER"),
    flag(MINT_COMMANDS, None, "name", "that is --user {}"),
    flag(MINT_COMMANDS, None, "topic", "name what is allowed there: --subscribe '{}', --publish '{}', or both"),
    flag(MINT_COMMANDS, None, "exp", "the claim is made from the time that the token is valid: --ttl 8h"),
    flag(MINT_COMMANDS, None, "expires", "write how long it holds: --ttl {}"),
];

/// Commands of other tools. Each row has the command of `crore` below which people try them, their names, and what to write instead.
#[rustfmt::skip]
const COMMANDS: &[(&str, &[&str], &str)] = &[
    ("crore", &["version"], "crore --version"),
    ("crore", &["status", "stats", "info", "health", "ping"], "crore admin stats; of a cluster: crore cluster status"),
    ("crore", &["start", "run", "server", "daemon"], "crore serve"),
    ("crore", &["stop", "quit", "shutdown"], "crore admin drain, or SIGTERM to the server"),
    ("crore", &["publish", "produce", "send"], "crore pub TOPIC MESSAGE"),
    ("crore", &["subscribe", "consume", "listen", "tail"], "crore sub TOPIC"),
    ("crore", &["topics", "connections", "rules", "limits", "reload", "drain", "disconnect"], "crore admin and this word"),
    ("crore", &["check", "config", "validate"], "crore serve --check --config FILE"),
    ("admin", &["list", "ls"], "crore admin topics, or crore admin connections"),
    ("admin", &["kick", "kill", "close", "ban"], "crore admin disconnect ID, or --user, --address, --filter"),
    ("admin", &["status", "info", "health", "metrics"], "crore admin stats"),
    ("admin", &["clients", "users"], "crore admin connections; of MQTT clients that are away: crore admin sessions"),
    ("admin", &["pub", "send"], "crore admin publish TOPIC MESSAGE, or crore pub"),
    ("admin", &["history", "get", "read"], "crore admin messages TOPIC, or crore history TOPIC"),
    ("admin", &["rm", "remove"], "crore admin delete TOPIC; crore admin purge keeps its subscribers"),
    ("admin", &["settings", "show"], "crore admin config"),
    ("token", &["create", "make", "new", "sign", "issue", "generate"], "crore token mint --key FILE"),
    ("token", &["verify", "check", "decode", "show"], "crore token inspect --config FILE TOKEN"),
];

/// The tip for a command that does not exist.
fn command_tip(word: &str, args: &[String]) -> Option<String> {
    let mut before = args.iter().take_while(|arg| *arg != word);
    let parent = before.find(|arg| matches!(&arg[..], "admin" | "token"));
    let parent = parent.map_or("crore", |arg| &arg[..]);
    let mut rows = COMMANDS.iter();
    let (.., tip) = rows.find(|(of, words, _)| *of == parent && words.contains(&word))?;
    Some(format!("write {tip}"))
}

/// Adds the flags to the program, hidden. Each of them causes an error that says what to write instead.
pub fn add_to(program: Command) -> Command {
    FLAGS.iter().fold(program, |program, flag| {
        flag.commands.iter().fold(program, |program, path| {
            let names: Vec<&'static str> = path.split(' ').collect();
            add_flag(program, &names, flag)
        })
    })
}

fn add_flag(command: Command, path: &[&'static str], flag: &'static ForeignFlag) -> Command {
    if let [name, rest @ ..] = path {
        return command.mut_subcommand(name, |it| add_flag(it, rest, flag));
    }
    let remedy = flag.remedy;
    let refuse =
        |value: &str| Err::<String, String>(remedy.replace("{}", &without_credentials(value)));
    let arg = Arg::new(remedy)
        .value_name("VALUE")
        .hide(true)
        .allow_hyphen_values(true)
        .value_parser(refuse);
    let arg = match flag.long {
        "" => arg.allow_hyphen_values(false),
        long => arg.long(long),
    };
    command.arg(match flag.short {
        Some(short) => arg.short(short),
        None => arg,
    })
}

/// Whether `-h HOST` follows a client command. If so, prints an error, because clap would show the help and say nothing about the host.
pub fn refuse_h_with_host(args: impl Iterator<Item = OsString>) -> bool {
    let args = to_text(args);
    let is_client = args
        .get(1)
        .is_some_and(|name| CLIENT_COMMANDS.contains(&&name[..]));
    let mut pairs = args.windows(2).filter(|pair| pair[0] == "-h");
    let Some(pair) = pairs.find(|pair| is_client && !pair[1].starts_with('-')) else {
        return false;
    };
    // If stderr is closed, the exit code still reports the error.
    let _ = writeln!(
        std::io::stderr(),
        "error: -h asks for help and takes no value; the host stands in the URL: --server http://{}:8800",
        without_credentials(&pair[1])
    );
    true
}

/// Replaces clap's tips by better ones. For an unknown flag clap advises to pass the flag as a value, which hardly anybody means. An
/// unexpected word is usually a part of a message without quotes.
pub fn with_better_tip(mut error: Error, program: &Command) -> Error {
    let args = to_text(std::env::args_os().skip(1));
    hide_passwords(&mut error);
    let tip = match error.kind() {
        ErrorKind::InvalidUtf8 => utf8_tip(),
        ErrorKind::InvalidSubcommand => match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(word)) => command_tip(word, &args),
            _ => None,
        },
        ErrorKind::MissingRequiredArgument => example_tip(program, &args),
        ErrorKind::UnknownArgument => {
            error.remove(ContextKind::Suggested);
            // Clap shows the usage of the flag that it suggests, which only has a similar name.
            if error.get(ContextKind::SuggestedArg).is_some() {
                error.remove(ContextKind::Usage);
            }
            argument_tip(&error, program, &args)
        }
        _ => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

/// The arguments as text. Bytes that are not UTF-8 are replaced.
fn to_text(args: impl Iterator<Item = OsString>) -> Vec<String> {
    args.map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// The tip for the first argument that is not UTF-8, although it must be.
fn utf8_tip() -> Option<String> {
    let mut args = std::env::args_os().skip(1);
    let arg = args.find(|arg| arg.to_str().is_none())?;
    Some(format!(
        "{arg:?} is not UTF-8, as names of topics, flags and their values are; the bytes of a message may be anything"
    ))
}

/// Hides passwords in URLs, since clap's errors repeat the values of flags.
fn hide_passwords(error: &mut Error) {
    let hidden: Vec<_> = error
        .context()
        .filter_map(|(kind, value)| match value {
            ContextValue::String(text) => Some((kind, without_credentials(text))),
            _ => None,
        })
        .collect();
    for (kind, text) in hidden {
        error.insert(kind, ContextValue::String(text));
    }
}

/// The tip for an unexpected argument.
fn argument_tip(error: &Error, program: &Command, args: &[String]) -> Option<String> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(arg)) if arg.starts_with('-') => flag_tip(program, args, arg),
        Some(ContextValue::String(arg)) if arg.ends_with(".toml") => Some(format!(
            "a settings file is named by a flag: --config {arg}"
        )),
        Some(ContextValue::String(arg)) if !arg.starts_with('-') && takes_message() => {
            Some("write a text with spaces in quotes: 'two words'".to_string())
        }
        _ => None,
    }
}

/// The tip that names the commands that have this flag. Looks among the siblings of the command in `args`, or among all commands if `args`
/// name none.
fn flag_tip(program: &Command, args: &[String], flag: &str) -> Option<String> {
    let mut path = vec![program];
    for arg in args.iter().take_while(|arg| *arg != flag) {
        path.extend(path[path.len() - 1].find_subcommand(arg));
    }
    if path.len() > 1 {
        path.pop();
    }
    let has_it = |command: &&Command| {
        let is_it = |it: &Arg| match flag.strip_prefix("--") {
            Some(long) => it.get_long() == Some(long),
            None => it
                .get_short()
                .is_some_and(|short| flag == format!("-{short}")),
        };
        command
            .get_arguments()
            .any(|it| is_it(it) && !it.is_hide_set())
    };
    let takers = path[path.len() - 1].get_subcommands().filter(has_it);
    let takers = takers.map(|it| format!("`{} {}`", command_line(&path), it.get_name()));
    let takers: Vec<_> = takers.collect();
    let (last, others) = takers.split_last()?;
    Some(match others {
        [] => format!("{flag} is a flag of {last}"),
        others => format!("{flag} is a flag of {} and {last}", others.join(", ")),
    })
}

/// A command as the user types it.
fn command_line(path: &[&Command]) -> String {
    let names: Vec<&str> = path.iter().map(|it| it.get_name()).collect();
    names.join(" ")
}

/// The tip with the first example of the command in `args`.
fn example_tip(program: &Command, args: &[String]) -> Option<String> {
    let named = args.iter().fold(program, |command, arg| {
        command.find_subcommand(arg).unwrap_or(command)
    });
    let below = named.get_after_help()?.to_string();
    let (_, examples) = below.split_once("Examples:\n")?;
    let line = examples.lines().next()?.trim();
    // Two spaces separate an example from its description.
    let (command, _) = line.split_once("  ").unwrap_or((line, ""));
    Some(format!("such as: {command}"))
}

/// Whether the command publishes a message.
fn takes_message() -> bool {
    std::env::args_os().any(|arg| arg == "pub" || arg == "publish")
}
