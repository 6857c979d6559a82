//! Messages between nodes outside the log, over core NATS. NATS does not store them: a node without a connection misses them.

use async_nats::connection::State;
use async_nats::{Client, Message};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

use crate::settings::Settings;

/// The connection to the other nodes. Messages may be lost.
#[derive(Clone)]
pub struct Peers {
    client: Client,
    broadcast_subject: String,
    question_subject: String,
}

/// A question that a node has asked.
pub struct Question {
    client: Client,
    message: Message,
}

impl Question {
    /// The bytes of the question.
    pub fn bytes(&self) -> &[u8] {
        &self.message.payload
    }

    /// Answers the question.
    pub async fn answer(self, bytes: Vec<u8>) {
        if let Some(reply) = self.message.reply {
            // If the answer is lost, the asking node reports after a short time that this node has not answered.
            let _ = self.client.publish(reply, bytes.into()).await;
        }
    }
}

impl Peers {
    pub(crate) fn new(client: Client, settings: &Settings) -> Peers {
        Peers {
            client,
            broadcast_subject: format!("crore.{}.node.told", settings.name),
            question_subject: format!("crore.{}.node.asked", settings.name),
        }
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Sends a message to all nodes, including this one. Without a connection the message is dropped, because it would be outdated when the
    /// connection is back.
    pub async fn broadcast(&self, bytes: Vec<u8>) {
        if self.is_connected() {
            let _ = self
                .client
                .publish(self.broadcast_subject.clone(), bytes.into())
                .await;
        }
    }

    /// The messages that nodes, including this one, send to all nodes. `None` if the connection has ended for good.
    pub async fn broadcasts(&self) -> Option<impl Stream<Item = Bytes> + use<>> {
        let broadcasts = self
            .client
            .subscribe(self.broadcast_subject.clone())
            .await
            .ok()?;
        Some(broadcasts.map(|message| message.payload))
    }

    /// The questions that nodes, including this one, ask all nodes.
    pub async fn questions(&self) -> Option<impl Stream<Item = Question> + use<>> {
        self.questions_at(self.question_subject.clone()).await
    }

    /// The questions to the node with this name.
    pub async fn questions_to(&self, node: &str) -> Option<impl Stream<Item = Question> + use<>> {
        self.questions_at(self.question_subject_of(node)).await
    }

    fn question_subject_of(&self, node: &str) -> String {
        format!("{}.{node}", self.question_subject)
    }

    async fn questions_at(&self, subject: String) -> Option<impl Stream<Item = Question> + use<>> {
        let messages = self.client.subscribe(subject).await.ok()?;
        let client = self.client.clone();
        let question = move |message| Question {
            client: client.clone(),
            message,
        };
        Some(messages.map(question))
    }

    /// Asks the node with this name. `None` if the node does not answer, or has not called `questions_to`.
    pub async fn ask_one(&self, node: &str, question: Vec<u8>) -> Option<Bytes> {
        if !self.is_connected() {
            return None;
        }
        let answer = self
            .client
            .request(self.question_subject_of(node), question.into());
        Some(answer.await.ok()?.payload)
    }

    /// Asks all nodes, including this one. The stream of answers does not end by itself.
    pub async fn ask_all(&self, question: Vec<u8>) -> Option<impl Stream<Item = Bytes> + use<>> {
        if !self.is_connected() {
            return None;
        }
        let inbox = self.client.new_inbox();
        let answers = self.client.subscribe(inbox.clone()).await.ok()?;
        let publish =
            self.client
                .publish_with_reply(self.question_subject.clone(), inbox, question.into());
        publish.await.ok()?;
        Some(answers.map(|message| message.payload))
    }
}
