//! Runs a program whose input and output the guard passes on. Once the guard's input closes, the
//! program has two seconds to end. Then the program gets SIGTERM and has three more seconds, before
//! the guard kills the program's process group.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    DRAIN_TIMEOUT, GuardLine, GuardSignal, Order, end_group, pid_of, send_exit, spawn, write_line,
};

/// How long the program has to end once its input is closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
const SIGTERM_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the program until it ends or the guard's input closes. Then ends the program's process
/// group.
pub(super) fn relay(
    order: &Order,
    input: impl Read + Send + 'static,
    output: &mut impl Write,
) -> io::Result<()> {
    let mut child = match start(order) {
        Ok(child) => child,
        Err(error) => {
            let why = format!("the program could not be started: {error}");
            return write_line(output, &GuardLine::NotStarted(why));
        }
    };
    let pid = pid_of(&child)?;
    let started = write_line(output, &GuardLine::Started(pid.as_raw_nonzero().get()));
    let (events, drained) = match started.and_then(|()| connect(&mut child, pid, input)) {
        Ok(connected) => connected,
        Err(error) => {
            end_group(pid, &mut child)?;
            return Err(error);
        }
    };
    wait(&events, pid);
    end_group(pid, &mut child)?;
    let _ = drained.recv_timeout(DRAIN_TIMEOUT);
    Ok(())
}

fn start(order: &Order) -> io::Result<Child> {
    let (program, arguments) = order
        .program
        .split_first()
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    spawn(command.args(arguments), order, Stdio::inherit())
}

/// Connects the program's input and output with the guard's. Returns the receiver of the events,
/// and a receiver that disconnects once all of the program's output is passed on.
fn connect(
    child: &mut Child,
    pid: Pid,
    mut input: impl Read + Send + 'static,
) -> io::Result<(Receiver<GuardSignal>, Receiver<()>)> {
    let (sender, events) = channel();
    let (drained, passed_on) = channel::<()>();
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let closed = sender.clone();
    send_exit(pid, sender.clone())?;
    thread::Builder::new().spawn(move || {
        // This thread reports the end of the guard's input. The next thread, which copies the input
        // to the program, does not notice the end while the program does not read.
        let stdin = io::stdin();
        let mut closing = [PollFd::new(&stdin, PollFlags::empty())];
        while let Err(rustix::io::Errno::INTR) = poll(&mut closing, None) {}
        let _ = closed.send(GuardSignal::InputClosed);
    })?;
    thread::Builder::new().spawn(move || {
        if let Some(mut stdin) = stdin {
            let _ = copy_flushing(&mut input, &mut stdin);
        }
        // If the program closes its input early, this thread discards the rest of the guard's
        // input. So the thread sends `InputClosed` only at the end of the guard's input.
        let _ = io::copy(&mut input, &mut io::sink());
        let _ = sender.send(GuardSignal::InputClosed);
    })?;
    thread::Builder::new().spawn(move || {
        if let Some(mut stdout) = stdout {
            let _ = copy_flushing(&mut stdout, &mut io::stdout().lock());
        }
        drop(drained);
    })?;
    Ok((events, passed_on))
}

fn copy_flushing(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(buffer.get(..read).unwrap_or_default())?;
        to.flush()?;
    }
}

/// Waits until the program ends. Once the guard's input has closed, the program has
/// [`EXIT_TIMEOUT`] and, after SIGTERM, [`SIGTERM_TIMEOUT`] to end.
fn wait(events: &Receiver<GuardSignal>, pid: Pid) {
    if !matches!(events.recv(), Ok(GuardSignal::InputClosed)) {
        return;
    }
    if !exits_within(events, EXIT_TIMEOUT) {
        // An error means that the group is already empty.
        let _ = kill_process_group(pid, Signal::TERM);
        exits_within(events, SIGTERM_TIMEOUT);
    }
}

fn exits_within(events: &Receiver<GuardSignal>, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    loop {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(GuardSignal::Exited) => return true,
            Ok(GuardSignal::InputClosed | GuardSignal::Drained) => {}
            Err(_) => return false,
        }
    }
}
