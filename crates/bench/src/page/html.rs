//! Writes the HTML of the report's page, which has no scripts and one column, so that it is readable on a phone.

use super::plot::COLOURS;

const STYLE: &str = "*{box-sizing:border-box}body{margin:0 auto;max-width:66rem;padding:1rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif}h1{font-size:1.6rem;line-height:1.2}h2{margin-top:2.5rem;border-top:1px solid var(--grid);padding-top:1rem}\
a{color:var(--s0)}code{overflow-wrap:anywhere}.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}\
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--grid);text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start;margin-top:1rem}\
svg{width:100%;height:auto;border:1px solid var(--grid);border-radius:6px}.of{font-size:.85rem;opacity:.85}.bad{color:var(--s3)}";

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// The complete page.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{COLOURS}{STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}</body></html>\n"
    )
}

/// A table; cells are text.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=\"wide\"><table><thead><tr>");
    for head in heads {
        out += &format!("<th>{}</th>", escape(head));
    }
    out += "</tr></thead><tbody>";
    for row in rows {
        out += "<tr>";
        for cell in row {
            out += &format!("<td>{}</td>", escape(cell));
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></div>\n"
}

/// Plots, side by side if there is space.
pub fn plots(svgs: &[String]) -> String {
    if svgs.is_empty() {
        return String::new();
    }
    format!("<div class=\"plots\">{}</div>\n", svgs.concat())
}
