// Package process runs instances as local processes: the runtime of a bare GPU
// host, and of one machine that tries Windlass out.
//
//	agent                              shim (one per instance)        child
//	-----                              -----------------------        -----
//	record.json: attempt n
//	start, launch through a pipe  -->  flock lock
//	                                   facts.json: n, own pid
//	                                   start                     -->  exec
//	                                   facts.json: child's pid
//	attach to the shim's pidfd    <--  hello
//	check health over HTTP        ------------------------------->    port
//	record.json: the order
//	SIGTERM                       -->  drain delay, if in service
//	                                   SIGTERM, after grace SIGKILL   ends
//	                                   facts.json: how it ended
//	record.json: what it means    <--  ends
//
// # Why nothing runs twice, and nothing unseen
//
// The agent and each shim may be killed at any instruction. What holds:
//
//   - One at a time. A shim holds a lock on its instance's directory for as long
//     as it lives, and the kernel gives it back when the shim dies.
//   - One start per attempt. The agent writes attempt n before it starts a shim
//     for n, and never starts two for n. A shim runs only the attempt that
//     record.json names, and none that facts.json has already.
//   - No start after the end. An agent that finds an attempt in doubt (it died
//     between record and shim, the shim was killed, the host rebooted) takes the
//     lock and writes into facts.json that the attempt is over; only then there
//     is a next one. The agent takes the lock to delete an instance, too. A shim that
//     was delayed finds that the attempt is over, or that its directory is gone, and ends
//     without having run anything. If the lock is held, the shim lives, and will write its
//     facts soon.
//   - No child without its shim. The child asks the kernel to be killed when the
//     shim dies (PDEATHSIG): without a shim its exit would not be recorded, nor its
//     output read. It is worth less than a process that is started again under
//     supervision. What the child itself left behind is found by the
//     shim as its subreaper, and if the shim was killed, by the agent through the
//     instance's id in the environment of each process.
//   - A process is known by (pid, start time, boot id), never by its pid alone.
//
// The order to stop is executed by the shim, so that a drain that began ends in
// time also while there is no agent. Under systemd the agent's unit needs
// KillMode=process, or systemd kills what the agent leaves running.
//
// # Deciding
//
// decide is pure: (wanted, seen, now) -> actions and the next time to look. One
// keeper per workload feeds it and carries out what it says. The keeper decides
// nothing else. In whatever order events come, the next pass sees the whole
// state.
//
// Which groups and instances there should be, and which make room for another template,
// is package groups' decision. With several roles, the instances of a group find each
// other by a file that the keeper rewrites when one becomes ready or leaves. An instance
// that leaves waits until gateways are done with the entry instances of its group.
//
// # Secrets
//
// Values reach the shim through a pipe and the child through its environment.
// They are in no file and on no command line (unless args ask for them by
// name). An agent that was restarted has none until Apply brings them; until
// then what runs goes on, what would have to start waits as SecretUnavailable, and
// output is repeated neither in messages nor by Logs: they blank the values.
//
// # Users
//
// With Config.Isolation each instance runs as a user of its own and in the group of its
// environment. The shim stays root: it makes mount and IPC namespaces in which the agent's
// data directory is hidden, and forks the instance there without capabilities. An instance
// has no other user's rights, so that its user names all of its processes, however they
// detached themselves.
package process
