//! Compares the receivers' ledgers with the journals and the deliveries.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use holdpoint::task::event_name::{NOTIFIABLE_EVENTS, event_name};
use holdpoint::task::item::Fact;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::evidence::{Event, Row, Stored};
use super::{DEAD, ENTRIES, PEOPLE};
use crate::chaos::hooks::Arrival;
use crate::notify::{NEW, OLD};
use crate::support::fake_mail_server::Mail;
use crate::support::fake_receiver::Received;

/// The events that an entry gets where it names none.
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
/// The most questions that a mail lists.
const LISTED: usize = 20;

/// Everything that is known at the end.
#[derive(Debug)]
pub struct Evidence {
    pub stored: Stored,
    pub arrivals: Vec<Arrival>,
    pub mails: Vec<Mail>,
    /// The entries that mails are sent of.
    pub mail_entries: Vec<&'static str>,
}

/// The errors of a run, and its figures.
#[derive(Debug, Default)]
pub struct Findings {
    pub wrong: Vec<String>,
    pub events: usize,
    pub arrived: usize,
    /// Messages that arrived more than once.
    pub repeated: usize,
    /// Answers that were no 200.
    pub refused: usize,
    pub mails: usize,
    /// Mails that arrived more than once.
    pub repeated_mails: usize,
    /// Questions that somebody was told of by mail, and those that were closed before.
    pub told: usize,
    pub dropped: usize,
    /// Claims of a delivery whose last claim was another replica's, or had ended.
    pub taken_over: usize,
}

/// An event of a journal that a message may tell of.
struct Told<'e> {
    event: &'e Event,
    name: &'static str,
}

/// The events that messages may tell of.
fn told(stored: &Stored) -> Vec<Told<'_>> {
    let named = stored.events.iter().map(|event| {
        let fact: Fact = serde_json::from_str(&event.body).unwrap();
        let name = event_name(&fact, event.of_root, event.seq);
        Told { event, name }
    });
    named
        .filter(|told| NOTIFIABLE_EVENTS.contains(&told.name))
        .collect()
}

/// Whether an entry asks for events of this name.
fn wants(entry: &str, name: &str) -> bool {
    entry == ENTRIES[0] || USUAL.contains(&name)
}

pub fn check(evidence: &Evidence) -> Findings {
    let mut found = Findings::default();
    let told = told(&evidence.stored);
    found.events = told.len();
    messages(evidence, &told, &mut found);
    every_event_arrived(evidence, &told, &mut found);
    every_question_was_mailed(evidence, &told, &mut found);
    mails(evidence, &mut found);
    leases(&evidence.stored, &mut found);
    found
}

/// Checks that each message is that of the event in its id, is signed, and has the same bytes each
/// time.
fn messages(evidence: &Evidence, told: &[Told<'_>], found: &mut Findings) {
    let by_id: HashMap<String, &Told<'_>> = told.iter().map(|told| (told.id(), told)).collect();
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
            Some(told) if !told.is_told_by(&arrival.entry, &message) => {
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

impl Told<'_> {
    /// The id of its messages.
    fn id(&self) -> String {
        format!("evt_{}_{}", self.event.change, self.event.number)
    }

    /// Those who may decide the request that it opens: the owner, and of some requests finance.
    fn approvers(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let Ok(Fact::InterventionRequested(asked)) = serde_json::from_str(&self.event.body) else {
            panic!("{:?} opens no request", self.event);
        };
        let finance = asked.terms.approvers.groups.contains(&"finance".to_owned());
        PEOPLE.into_iter().take(1 + usize::from(finance))
    }

    /// Whether a message to this entry tells of this event. The data of a whole event has its name
    /// where one in brief has its number.
    fn is_told_by(&self, entry: &str, message: &Received) -> bool {
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

/// Checks that each event was taken by each healthy receiver that asks for it, and is kept for the
/// dead one.
fn every_event_arrived(evidence: &Evidence, told: &[Told<'_>], found: &mut Findings) {
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
        for told in told.iter().filter(|told| wants(entry, told.name)) {
            wanted += 1;
            let (event, name, id) = (told.event, told.name, told.id());
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

/// Checks that each question was in a mail to each approver, unless it was closed before.
fn every_question_was_mailed(evidence: &Evidence, told: &[Told<'_>], found: &mut Findings) {
    let mailed = mailed(evidence);
    let closed_by = |request: &str, at: i64| {
        let mut events = told.iter().filter(|told| told.name != "request.created");
        events.any(|told| told.event.request_id.as_deref() == Some(request) && told.event.at <= at)
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
    let asked: Vec<_> = told
        .iter()
        .filter(|told| told.name == "request.created")
        .collect();
    for entry in &evidence.mail_entries {
        for told in &asked {
            let request = told.event.request_id.as_deref().unwrap();
            for (person, _) in told.approvers() {
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

/// The deliveries whose mail arrived. Those that were recorded together are one mail, which lists 20
/// questions at most, and whose id follows from them.
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
        mails
            .entry((last[id], &row.person))
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

/// The id of a mail of these deliveries, which are in order: that of the only one, or the hash of all.
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

/// Checks that no id is of mails to two people or about different questions.
fn mails(evidence: &Evidence, found: &mut Findings) {
    let mut by_id: BTreeMap<&str, BTreeSet<(&str, Vec<&str>)>> = BTreeMap::new();
    for mail in &evidence.mails {
        let words = mail.text.split_whitespace();
        let about: Vec<_> = words.filter(|word| word.contains("/resume/")).collect();
        let told = by_id.entry(&mail.id).or_default();
        told.insert((&mail.to, about));
    }
    found.mails = evidence.mails.len();
    found.repeated_mails = evidence.mails.len() - by_id.len();
    for (id, told) in by_id.iter().filter(|(_, told)| told.len() > 1) {
        found.wrong.push(format!("{id} is of two mails: {told:?}"));
    }
}

/// Checks that only the replica with the lease of a delivery records an attempt at it.
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

/// The holder of a lease that the test has ended.
const LOST: &str = "no replica";
