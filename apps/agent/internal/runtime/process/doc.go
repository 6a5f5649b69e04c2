// Package process runs instances as local processes. It is the runtime of a bare GPU host, and of a
// single machine on which Windlass is tried out.
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
// # Why no instance runs twice or unobserved
//
// The agent and each shim may be killed at any instruction. These rules still hold:
//
//   - One shim at a time. A shim holds a lock on its instance's directory while it lives. The
//     kernel releases the lock when the shim dies.
//   - One start per attempt. The agent writes attempt n before it starts a shim for n, and never
//     starts two shims for n. A shim runs only the attempt that record.json names, and no attempt
//     that facts.json already has.
//   - No start after the end. An attempt may be in doubt: the agent died between record and shim,
//     the shim was killed, or the host rebooted. Then the agent takes the lock and writes into
//     facts.json that the attempt is over. The next attempt begins only after that. The agent also
//     takes the lock to delete an instance. A delayed shim finds that the attempt is over, or that
//     its directory is gone, and ends without running anything. If the lock is held, the shim
//     lives, and will write its facts soon.
//   - No child without its shim. The child asks the kernel to kill it when the shim dies
//     (PDEATHSIG), because without a shim, its exit would not be recorded and its output not read.
//     Such a process is worth less than one that is started again under supervision. The shim is the
//     subreaper of the child, and so finds the processes that the child leaves behind. If the shim
//     was killed, the agent finds them by the instance's id in the environment of each process.
//   - A process is identified by (pid, start time, boot id), never only by its pid.
//
// The shim executes the order to stop. So a drain ends in time even if there is no agent. Under
// systemd, the agent's unit needs KillMode=process. Otherwise, systemd kills the instances when the
// agent ends.
//
// # Deciding
//
// decide is pure: (wanted, seen, now) -> actions and the time of the next call. One keeper per
// workload calls it and carries out the actions. The keeper decides nothing else. In whatever order
// events come, the next pass sees the whole state.
//
// Package groups decides which groups and instances should exist, and which of them make room for
// another template. With several roles, the instances of a group find each other by a file. The
// keeper writes this file again when an instance becomes ready or leaves. An instance that leaves
// waits until gateways have finished with the entry instances of its group.
//
// # Secrets
//
// Values reach the shim through a pipe, and the child through its environment. They are in no file
// and on no command line, unless args name them. A restarted agent has no values until Apply brings
// them. Until then, running instances keep running, and an instance that must start waits with the
// reason SecretUnavailable. The output of instances is then shown neither in messages nor by Logs,
// because values in it could not be blanked.
//
// # Users
//
// With Config.Isolation, each instance runs as its own user and in the group of its environment.
// The shim stays root. It makes mount and IPC namespaces in which the agent's data directory is
// hidden, and forks the instance there without capabilities. An instance cannot become another
// user, so its user identifies all of its processes, even if they detached themselves.
package process
