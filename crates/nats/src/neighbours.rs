//! Messages of the nodes to each other beside the log, over core NATS: none is kept, and a node that is away does not hear it.

use async_nats::connection::State;
use async_nats::{Client, Message};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

use crate::settings::Settings;

/// The way to the other nodes. Messages on it may be lost.
#[derive(Clone)]
pub struct Neighbours {
    client: Client,
    told: String,
    asked: String,
}

/// A question of a node.
pub struct Question {
    client: Client,
    message: Message,
}

impl Question {
    /// The question.
    pub fn bytes(&self) -> &[u8] {
        &self.message.payload
    }

    /// Answers it.
    pub async fn answer(self, bytes: Vec<u8>) {
        if let Some(reply) = self.message.reply {
            // The node that asked does not wait for long, and says who has not answered.
            let _ = self.client.publish(reply, bytes.into()).await;
        }
    }
}

impl Neighbours {
    pub(crate) fn new(client: Client, settings: &Settings) -> Neighbours {
        Neighbours {
            client,
            told: format!("crore.{}.node.told", settings.name),
            asked: format!("crore.{}.node.asked", settings.name),
        }
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Tells all nodes, this one included. Without a connection nobody is told: news that waited for one would be old.
    pub async fn tell(&self, bytes: Vec<u8>) {
        if self.is_connected() {
            let _ = self.client.publish(self.told.clone(), bytes.into()).await;
        }
    }

    /// The messages of nodes, this one included; none where the connection has ended for good.
    pub async fn told(&self) -> Option<impl Stream<Item = Bytes> + use<>> {
        let told = self.client.subscribe(self.told.clone()).await.ok()?;
        Some(told.map(|message| message.payload))
    }

    /// The questions of nodes to all, this one's included.
    pub async fn questions(&self) -> Option<impl Stream<Item = Question> + use<>> {
        self.questions_at(self.asked.clone()).await
    }

    /// The questions to the node with this name.
    pub async fn questions_to(&self, node: &str) -> Option<impl Stream<Item = Question> + use<>> {
        self.questions_at(self.asked_of(node)).await
    }

    fn asked_of(&self, node: &str) -> String {
        format!("{}.{node}", self.asked)
    }

    async fn questions_at(&self, subject: String) -> Option<impl Stream<Item = Question> + use<>> {
        let asked = self.client.subscribe(subject).await.ok()?;
        let client = self.client.clone();
        let question = move |message| Question {
            client: client.clone(),
            message,
        };
        Some(asked.map(question))
    }

    /// Asks the node with this name; none where it does not answer, or has no such questions.
    pub async fn ask_one(&self, node: &str, question: Vec<u8>) -> Option<Bytes> {
        if !self.is_connected() {
            return None;
        }
        let asked = self.client.request(self.asked_of(node), question.into());
        Some(asked.await.ok()?.payload)
    }

    /// Asks all nodes, this one included. Answers come for as long as they are waited for.
    pub async fn ask(&self, question: Vec<u8>) -> Option<impl Stream<Item = Bytes> + use<>> {
        if !self.is_connected() {
            return None;
        }
        let inbox = self.client.new_inbox();
        let answers = self.client.subscribe(inbox.clone()).await.ok()?;
        let asked = self
            .client
            .publish_with_reply(self.asked.clone(), inbox, question.into());
        asked.await.ok()?;
        Some(answers.map(|message| message.payload))
    }
}
