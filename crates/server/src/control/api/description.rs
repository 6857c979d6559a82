//! Completes the generated OpenAPI description: a name for each operation (GET, POST, DELETE), a text for each response, and the limits of the
//! current settings.

use axum::http::StatusCode;
use crore_broker::settings::Limits;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::{OpenApi, RefOr};

/// The schemas of request bodies.
const REQUEST_BODIES: [&str; 2] = ["ToPublish", "DisconnectRequest"];

/// Completes the description `api`, for a server with these limits.
pub fn complete(api: &mut OpenApi, limits: &Limits) {
    for (path, item) in &mut api.paths.paths {
        let methods = [
            ("get", &mut item.get),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
        ];
        for (method, operation) in methods {
            let Some(operation) = operation else {
                continue;
            };
            operation.operation_id = Some(operation_id(method, path));
            describe_responses(operation);
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter
                    && let Some(schema) = &mut parameter.schema
                {
                    set_max_length(&parameter.name, schema, limits);
                }
            }
        }
    }
    let schemas = api.components.iter_mut().flat_map(|all| &mut all.schemas);
    for (name, schema) in schemas {
        if let RefOr::T(Schema::Object(body)) = schema
            && REQUEST_BODIES.contains(&name.as_str())
        {
            let fields = body.properties.iter_mut();
            fields.for_each(|(name, schema)| set_max_length(name, schema, limits));
        }
    }
}

/// A unique name for an operation (OpenAPI 3.1, section 4.8.10), like `get_connections_id`. The generated name is the handler's, and
/// handlers of several modules have the same name.
fn operation_id(method: &str, path: &str) -> String {
    let path = path.trim_start_matches("/api/v1").replace(['{', '}'], "");
    format!(
        "{method}{}",
        path.replace(|c: char| !c.is_alphanumeric(), "_")
    )
}

/// Gives each response a text (OpenAPI 3.1, section 4.8.17). If the handler gives none, a success gets the summary of the operation, and an
/// error gets the standard phrase of its status.
fn describe_responses(operation: &mut Operation) {
    let summary = operation.summary.clone().unwrap_or_default();
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else {
            continue;
        };
        if response.description.is_empty() {
            let status: Option<StatusCode> = status.parse().ok();
            let reason = status.filter(|status| !status.is_success());
            let reason = reason.and_then(|status| status.canonical_reason());
            response.description = reason.map_or(summary.clone(), str::to_string);
        }
    }
}

/// Sets the maximum length of a text from the setting that limits it. Settings count bytes and schemas count characters. A character has at
/// least one byte, so the limit holds for characters too.
fn set_max_length(name: &str, schema: &mut RefOr<Schema>, limits: &Limits) {
    let bytes = match name {
        "name" | "topic" | "filter" => limits.topic_bytes,
        "data" => limits.message_bytes,
        "data_base64" => limits.message_bytes.div_ceil(3) * 4,
        _ => return,
    };
    let RefOr::T(Schema::Object(object)) = schema else {
        return;
    };
    let is_text = match &object.schema_type {
        SchemaType::Type(kind) => *kind == Type::String,
        SchemaType::Array(kinds) => kinds.contains(&Type::String),
        SchemaType::AnyValue => false,
    };
    if is_text {
        object.max_length = Some(bytes);
    }
}
