//! Compares the messages and mails that arrived with the events of the journals and with the stored
//! deliveries.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use holdpoint::task::event_name::{NOTIFIABLE_EVENTS, event_name};
use holdpoint::task::item::Fact;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::evidence::{Event, Row, Stored};
use super::{DEAD, ENTRIES, MAILS, PEOPLE};
use crate::chaos::hooks::Arrival;
use crate::notify::{NEW, OLD};
use crate::support::fake_mail_server::Mail;
use crate::support::fake_receiver::Received;

/// The events that an entry of the configuration gets if the entry names no events.
const USUAL: [&str; 8] = [
    "task.paused",
    "task.completed",
    "task.failed",
    "task.canceled",
    "request.created",
    "request.decided",
    "request.expired",
    "request.withdrawn",
];
const LISTED: usize = 20;

/// All evidence at the end of a run: the stored rows, and the messages and mails that arrived.
#[derive(Debug)]
pub struct Evidence {
    pub stored: Stored,
    pub arrivals: Vec<Arrival>,
    pub mails: Vec<Mail>,
    pub mail_entries: Vec<&'static str>,
}

/// The errors that were found in a run, and the figures of the run.
#[derive(Debug, Default)]
pub struct Findings {
    pub wrong: Vec<String>,
    pub events: usize,
    pub arrived: usize,
    /// The number of messages that arrived more than once.
    pub repeated: usize,
    /// The number of arrivals that were not answered with a 200.
    pub refused: usize,
    pub mails: usize,
    /// The number of mails that arrived more than once.
    pub repeated_mails: usize,
    /// The number of pairs of a question and an approver for which a mail was sent. `dropped`
    /// counts the pairs whose question was closed before a mail was sent.
    pub told: usize,
    pub dropped: usize,
    /// The number of claims of deliveries whose previous lease ended without a recorded attempt.
    /// Counts a claim only if another replica held this lease, or if the test ended this lease.
    pub taken_over: usize,
}

/// An event of a journal about which a message may be sent.
struct NotifiableEvent<'e> {
    event: &'e Event,
    name: &'static str,
}

fn notifiable_events(stored: &Stored) -> Vec<NotifiableEvent<'_>> {
    let named = stored.events.iter().map(|event| {
        let fact: Fact = serde_json::from_str(&event.body).unwrap();
        let name = event_name(&fact, event.of_root, event.seq);
        NotifiableEvent { event, name }
    });
    named
        .filter(|notified| NOTIFIABLE_EVENTS.contains(&notified.name))
        .collect()
}

fn wants(entry: &str, name: &str) -> bool {
    entry == ENTRIES[0] || USUAL.contains(&name)
}

pub fn check(evidence: &Evidence) -> Findings {
    let mut found = Findings::default();
    let events = notifiable_events(&evidence.stored);
    found.events = events.len();
    messages(evidence, &events, &mut found);
    every_event_arrived(evidence, &events, &mut found);
    every_question_was_mailed(evidence, &events, &mut found);
    mails(evidence, &mut found);
    leases(&evidence.stored, &mut found);
    found
}

/// Checks that each message is about the event that its id names, that each message is signed, and
/// that repeated messages have the same bytes.
fn messages(evidence: &Evidence, events: &[NotifiableEvent<'_>], found: &mut Findings) {
    let by_id: HashMap<String, &NotifiableEvent<'_>> = events
        .iter()
        .map(|notified| (notified.id(), notified))
        .collect();
    let mut bodies: BTreeMap<(&str, String), BTreeSet<String>> = BTreeMap::new();
    let mut times: BTreeMap<(&str, String), usize> = BTreeMap::new();
    found.arrived = evidence.arrivals.len();
    for arrival in &evidence.arrivals {
        found.refused += usize::from(!arrival.is_taken());
        let message = arrival.received();
        let id = message.id().to_owned();
        let signed = message.is_signed_with(NEW)
            && (arrival.entry == ENTRIES[0] || message.is_signed_with(OLD));
        if !signed {
            found.wrong.push(format!("{id} is not signed"));
        }
        match by_id.get(&id) {
            None => found.wrong.push(format!("{id} is of no event")),
            Some(notified) if !notified.is_reported_by(&arrival.entry, &message) => {
                let what = format!("{id} tells of another event: {}", message.text);
                found.wrong.push(what);
            }
            Some(_) => {}
        }
        let key = (arrival.entry.as_str(), id);
        *times.entry(key.clone()).or_default() += 1;
        bodies.entry(key).or_default().insert(message.text);
    }
    found.repeated = times.values().filter(|times| **times > 1).count();
    for ((entry, id), texts) in bodies {
        if texts.len() > 1 {
            let what = format!("{id} to {entry} has several bodies: {texts:#?}");
            found.wrong.push(what);
        }
    }
}

impl NotifiableEvent<'_> {
    fn id(&self) -> String {
        format!("evt_{}_{}", self.event.change, self.event.number)
    }

    /// Returns the people who may decide the request that this event opens: the owner, and for some
    /// requests also a member of finance.
    fn approvers(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let Ok(Fact::InterventionRequested(asked)) = serde_json::from_str(&self.event.body) else {
            panic!("{:?} opens no request", self.event);
        };
        let finance = asked.terms.approvers.groups.contains(&"finance".to_owned());
        PEOPLE.into_iter().take(1 + usize::from(finance))
    }

    /// Returns whether a message to this entry is about this event. In a brief message, the member
    /// `event` of the data is the event's number. In a whole message, the member `event` is the
    /// event's name.
    fn is_reported_by(&self, entry: &str, message: &Received) -> bool {
        let data = &message.body["data"];
        let event = if entry == ENTRIES[0] {
            json!(self.event.number)
        } else {
            json!(self.name)
        };
        let task = (&data["root_task_id"], &data["task_id"]);
        message.kind() == self.name
            && data["event"] == event
            && task == (&json!(self.event.root), &json!(self.event.task))
    }
}

/// Checks that each healthy receiver took each event for which it asks, and that the deliveries to
/// the dead receiver are kept.
fn every_event_arrived(evidence: &Evidence, events: &[NotifiableEvent<'_>], found: &mut Findings) {
    let mut taken: BTreeSet<(&str, String)> = BTreeSet::new();
    for arrival in evidence.arrivals.iter().filter(|one| one.is_taken()) {
        taken.insert((&arrival.entry, arrival.received().id().to_owned()));
    }
    let mut rows: HashMap<(&str, &str, i64), Vec<&Row>> = HashMap::new();
    for row in &evidence.stored.deliveries {
        let key = (row.target.as_str(), row.change_id.as_str(), row.number);
        rows.entry(key).or_default().push(row);
    }
    let mut wanted = 0;
    for entry in [ENTRIES[0], ENTRIES[1], DEAD] {
        for notified in events.iter().filter(|notified| wants(entry, notified.name)) {
            wanted += 1;
            let (event, name, id) = (notified.event, notified.name, notified.id());
            let key = (entry, event.change_id.as_str(), event.number);
            let states = rows.get(&key).map_or(&[][..], Vec::as_slice);
            let states: Vec<_> = states.iter().map(|row| row.state.as_str()).collect();
            let is_right = match states[..] {
                ["sent"] => entry != DEAD && taken.contains(&(entry, id.clone())),
                ["due" | "dead"] => entry == DEAD,
                _ => false,
            };
            if !is_right {
                found
                    .wrong
                    .push(format!("{name} ({id}) to {entry} is lost: {states:?}"));
            }
        }
    }
    let all = evidence.stored.deliveries.iter();
    let all = all.filter(|row| !row.is_mail()).count();
    if all != wanted {
        let what = format!("{all} deliveries to receivers, {wanted} are wanted");
        found.wrong.push(what);
    }
}

/// For each question and each of its approvers, checks that a mail was sent, or that the question
/// was closed before.
fn every_question_was_mailed(
    evidence: &Evidence,
    events: &[NotifiableEvent<'_>],
    found: &mut Findings,
) {
    let mailed = mailed(evidence);
    let closed_by = |request: &str, at: i64| {
        let mut closings = events
            .iter()
            .filter(|notified| notified.name != "request.created");
        closings.any(|notified| {
            notified.event.request_id.as_deref() == Some(request) && notified.event.at <= at
        })
    };
    let mails = evidence
        .stored
        .deliveries
        .iter()
        .filter(|row| row.is_mail());
    let mut rows: BTreeMap<(&str, &str, &str), &Row> = BTreeMap::new();
    for row in mails {
        let request = row.request_id.as_deref().unwrap();
        rows.insert((&row.target, request, &row.person), row);
    }
    let asked: Vec<_> = events
        .iter()
        .filter(|notified| notified.name == "request.created")
        .collect();
    for entry in &evidence.mail_entries {
        for notified in &asked {
            let request = notified.event.request_id.as_deref().unwrap();
            for (person, _) in notified.approvers() {
                let row = rows.remove(&(*entry, request, person));
                let is_right = match row.map(|row| (row.state.as_str(), row)) {
                    Some(("sent", row)) => {
                        found.told += 1;
                        mailed.contains(row.delivery_id.as_str())
                    }
                    Some(("dropped", row)) => {
                        found.dropped += 1;
                        closed_by(request, row.ended_at.unwrap())
                    }
                    _ => false,
                };
                if !is_right {
                    let what = format!("{person} was not told of {request} by {entry}: {row:?}");
                    found.wrong.push(what);
                }
            }
        }
    }
    for row in rows.into_values() {
        found.wrong.push(format!("nobody is to be told of {row:?}"));
    }
}

/// Returns the deliveries whose mail arrived. Each delivery of `by-mail` has a mail of its own. All
/// deliveries of `gathered` to a person whose last attempts were recorded in the same transaction
/// belong to one mail, because only one mail to a person is sent at a time. [`message_id`] computes
/// the mail's id from the ids of these deliveries. The mail lists the questions of these
/// deliveries, but at most 20.
fn mailed(evidence: &Evidence) -> BTreeSet<&str> {
    let stored = &evidence.stored;
    let records = stored.audit.iter().filter(|line| line.what == "recorded");
    let last: HashMap<&str, &str> = records
        .map(|line| (&*line.delivery_id, &*line.tx))
        .collect();
    let mut mails: BTreeMap<(&str, &str), BTreeMap<&str, &Row>> = BTreeMap::new();
    for row in stored
        .deliveries
        .iter()
        .filter(|row| row.is_mail() && row.state == "sent")
    {
        let id = row.delivery_id.as_str();
        let is_alone = row.target == MAILS[0];
        let mail = if is_alone { id } else { last[id] };
        mails
            .entry((mail, &row.person))
            .or_default()
            .insert(id, row);
    }
    let arrived = |person: &str, rows: &BTreeMap<&str, &Row>| {
        let to = PEOPLE.iter().find(|(name, _)| *name == person).unwrap().1;
        let id = format!("{}@acme.example", message_id(rows.keys()));
        let lists = |text: &str| {
            let requests = rows.values().filter_map(|row| row.request_id.as_deref());
            requests.filter(|request| text.contains(request)).count() == rows.len().min(LISTED)
        };
        let mut mails = evidence.mails.iter();
        mails.any(|mail| mail.to == to && mail.id == id && lists(&mail.text))
    };
    let arrived = mails
        .iter()
        .filter(|((_, person), rows)| arrived(person, rows));
    arrived.flat_map(|(_, rows)| rows.keys().copied()).collect()
}

/// Returns the id of the mail for these deliveries, which are in order. For a single delivery, the
/// mail's id is the id of the delivery. For several deliveries, it is a hash of all their ids.
fn message_id<'d>(deliveries: impl ExactSizeIterator<Item = &'d &'d str>) -> Uuid {
    let ids: Vec<Uuid> = deliveries.map(|id| id.parse().unwrap()).collect();
    if let [only] = ids[..] {
        return only;
    }
    let mut hash = Sha256::new();
    for id in ids {
        hash.update(id.as_bytes());
    }
    Uuid::from_slice(&hash.finalize()[..16]).unwrap()
}

/// Checks that no two mails to different people, or about different questions, have the same id.
fn mails(evidence: &Evidence, found: &mut Findings) {
    let mut by_id: BTreeMap<&str, BTreeSet<(&str, Vec<&str>)>> = BTreeMap::new();
    for mail in &evidence.mails {
        let words = mail.text.split_whitespace();
        let about: Vec<_> = words.filter(|word| word.contains("/resume/")).collect();
        let notified = by_id.entry(&mail.id).or_default();
        notified.insert((&mail.to, about));
    }
    found.mails = evidence.mails.len();
    found.repeated_mails = evidence.mails.len() - by_id.len();
    for (id, notified) in by_id.iter().filter(|(_, notified)| notified.len() > 1) {
        found
            .wrong
            .push(format!("{id} is of two mails: {notified:?}"));
    }
}

/// Checks that each attempt at a delivery is recorded by the replica that holds the delivery's
/// lease.
fn leases(stored: &Stored, found: &mut Findings) {
    let mut holders: HashMap<&str, Option<&str>> = HashMap::new();
    for line in &stored.audit {
        let holder = holders.entry(&line.delivery_id).or_default();
        match line.what.as_str() {
            "claimed" => {
                found.taken_over += usize::from(holder.is_some_and(|other| other != line.who));
                *holder = Some(&line.who);
            }
            "recorded" => {
                if *holder != Some(&line.who) {
                    let (id, who) = (&line.delivery_id, &line.who);
                    let what = format!("{who} recorded an attempt at {id}, leased to {holder:?}");
                    found.wrong.push(what);
                }
                *holder = None;
            }
            _ => *holder = Some(LOST),
        }
    }
    let stuck = stored.deliveries.iter();
    let stuck =
        stuck.filter(|row| row.target != DEAD && !matches!(&*row.state, "sent" | "dropped"));
    let stuck: Vec<_> = stuck.collect();
    if !stuck.is_empty() {
        found.wrong.push(format!("deliveries are left: {stuck:?}"));
    }
}

/// The name that stands for the holder of a lease that the test has ended.
const LOST: &str = "no replica";
