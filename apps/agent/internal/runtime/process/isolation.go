package process

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process/portguard"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Isolation makes each instance run as its own user, in its own mount and IPC namespaces. It needs
// root.
type Isolation struct {
	// IDs is the range of user and group ids for instances. Nothing else on the host may use them.
	IDs IDRange
	// Groups are additional groups of instances, for access to device nodes.
	Groups []int
	// Hide has the directories that no instance may see. Default: DataDir.
	Hide []string
	// Ports says whether instances are kept from the ports of other environments. Default:
	// PortsAuto.
	Ports PortIsolation
}

// PortIsolation says whether instances are kept from the ports of other environments on the same host.
type PortIsolation string

const (
	// PortsAuto isolates ports if the host can do so. Otherwise, the capacity gets a note.
	PortsAuto PortIsolation = "auto"
	// PortsRequire makes New fail on a host that cannot isolate ports.
	PortsRequire PortIsolation = "require"
	// PortsOff lets instances connect to each other's ports.
	PortsOff PortIsolation = "off"
)

// user says as which user an instance runs, and what it sees of the host. Its group is that of its
// environment.
type user struct {
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups,omitempty"`
	// Hide has the directories to hide. Keep has directories below them that stay visible.
	Hide []string `json:"hide,omitempty"`
	Keep []string `json:"keep,omitempty"`
	// Cache is the directory that the instances of an environment share.
	Cache string `json:"cache,omitempty"`
	// Temp has the instance's own directories that replace directories of the host, by the host's
	// path.
	Temp map[string]string `json:"temp,omitempty"`
}

// tempDirs has the directories that every user of a host may write to. An instance gets its own
// directories in their places.
var tempDirs = map[string]string{"/tmp": "tmp", "/var/tmp": "var-tmp", "/run/lock": "run-lock"}

// hostDirs has directories of the host that no instance sees. Through the socket of D-Bus, systemd
// tells every user the command lines of processes.
var hostDirs = []string{"/run/dbus"}

// Check returns why instances cannot be isolated on this host, or nil if they can.
func (i *Isolation) Check() error {
	if err := checkCapabilities(); err != nil {
		return err
	}
	if name := namedID(i.IDs); name != "" {
		return fmt.Errorf("ids %s: %s has one of them: use --instance-uids with a range that nothing else on the host uses", i.IDs, name)
	}
	for _, dir := range i.Hide {
		for at := range tempDirs {
			if isWithin(dir, at) {
				return fmt.Errorf("directory %s: each instance has its own %s: use a directory outside of it, like /var/lib/windlass", dir, at)
			}
		}
		for at := filepath.Dir(dir); ; at = filepath.Dir(at) {
			st, err := os.Stat(at)
			if err != nil {
				return err
			}
			if st.Mode()&0o001 == 0 {
				return fmt.Errorf("directory %s: each instance runs as its own user, who may not enter %s (%v): use a directory like /var/lib/windlass, or allow it with chmod o+x %s",
					dir, at, st.Mode(), at)
			}
			if at == "/" {
				break
			}
		}
	}
	return nil
}

// needed has the capabilities that isolation needs, by their number.
var needed = map[uint]string{
	unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE", unix.CAP_FOWNER: "CAP_FOWNER", unix.CAP_KILL: "CAP_KILL",
	unix.CAP_SETGID: "CAP_SETGID", unix.CAP_SETUID: "CAP_SETUID", unix.CAP_SETPCAP: "CAP_SETPCAP",
	unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
}

func checkCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read the agent's capabilities: %w", err)
	}
	var missing []string
	for _, c := range slices.Sorted(maps.Keys(needed)) {
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			missing = append(missing, needed[c])
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the agent lacks %s", strings.Join(missing, ", "))
	}
	return nil
}

// resolveDefaults fills in defaults. It returns an error if instances cannot be isolated on this host.
func (i *Isolation) resolveDefaults(dataDir string) (*Isolation, error) {
	out := *i
	if len(out.Hide) == 0 {
		out.Hide = []string{dataDir}
	}
	out.Hide = slices.Clone(out.Hide)
	for n, dir := range out.Hide {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		out.Hide[n] = abs
	}
	return &out, out.Check()
}

// guardPorts starts to keep instances from the ports of other environments, as i.Ports says.
func (r *Runtime) guardPorts(i *Isolation) (err error) {
	first, last := uint32(i.IDs.First), uint32(i.IDs.Last)
	if i.Ports == PortsOff {
		if err := portguard.Remove(first, last); err != nil {
			r.log.Warn("instances may still be unable to connect to the ports of others", "err", err)
		}
		return nil
	}
	r.guard, err = portguard.Open(first, last)
	switch {
	case err == nil:
		r.ledger.freed = func(ports ...int) {
			if err := r.guard.Free(ports...); err != nil {
				r.log.Warn("cannot free the reserved ports of instances that are gone", "ports", ports, "err", err)
			}
		}
	case i.Ports == PortsRequire:
		return fmt.Errorf("this host cannot isolate the ports of instances: %w", err)
	default:
		r.notes = append(r.notes, "port isolation: "+err.Error()+"; instances can call the ports of others")
		r.log.Warn("this host cannot isolate the ports of instances: they can call each other's", "err", err)
	}
	return nil
}

// reservePorts reserves the ports of an instance for its environment until the ledger frees them,
// because gateways may still know an instance that has ended.
func (r *Runtime) reservePorts(rec record) error {
	if r.guard == nil || rec.GID == 0 {
		return nil
	}
	for _, p := range rec.Ports {
		if p.Port > 0 {
			if err := r.guard.Reserve(uint32(rec.GID), p.Port); err != nil {
				return err
			}
		}
	}
	return nil
}

// restorePorts reserves the ports of the instances of an earlier agent. It frees all other ports
// that the earlier agent had reserved.
func (r *Runtime) restorePorts() error {
	if r.guard == nil {
		return nil
	}
	had := map[int]bool{}
	for _, w := range r.workloads {
		for _, in := range w.instances {
			if err := r.reservePorts(in.rec); err != nil {
				return err
			}
			for _, p := range in.rec.Ports {
				had[p.Port] = true
			}
		}
	}
	return r.guard.Keep(had)
}

// sharesUser reports whether the deployment's instances would run as the same user as instances of
// another workspace.
func (r *Runtime) sharesUser(d *agentv1.Deployment) bool {
	if r.cfg.Isolation != nil || r.cfg.TrustAllTenants {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, other := range r.deployments {
		// A deployment without a workspace was stored by an earlier release, or was made for a
		// stray. It counts as belonging to no workspace.
		if w := other.spec.GetWorkspaceId(); id != d.GetId() && w != "" && w != d.GetWorkspaceId() {
			return true
		}
	}
	return false
}

func environmentOf(d *deployment) string {
	return d.spec.GetWorkspaceId() + "/" + d.spec.GetEnvironmentId()
}

// claimUser gives an instance its user and group, or says why it cannot.
func (r *Runtime) claimUser(rec *record, d *deployment, now time.Time) *block {
	if r.users == nil {
		rec.UID, rec.GID = 0, 0
		return nil
	}
	if err := r.users.claimUser(rec, environmentOf(d)); err != nil {
		return &block{Reason: runtime.ReasonUnschedulable, Message: err.Error(), Until: now.Add(blockedRetry)}
	}
	return nil
}

// userOf returns the user of an instance, and what the instance sees of the host. Nil: the instance
// runs as the agent's user, and sees everything.
func (r *Runtime) userOf(rec record, dir string) *user {
	if rec.UID == 0 {
		return nil
	}
	u := &user{
		UID: rec.UID, GID: rec.GID, Groups: r.cfg.Isolation.Groups, Hide: r.cfg.Isolation.Hide,
		Cache: r.users.cacheDir(rec.GID), Temp: map[string]string{},
	}
	for _, at := range hostDirs {
		if st, err := os.Stat(at); err == nil && st.IsDir() {
			u.Hide = append(slices.Clip(u.Hide), at)
		}
	}
	u.Keep = []string{dir, u.Cache}
	for at, name := range tempDirs {
		if st, err := os.Stat(at); err == nil && st.IsDir() {
			u.Temp[at] = filepath.Join(r.instanceDir(rec.ID), name)
		}
	}
	return u
}

// makeOwn makes the directories of an instance with its own user, and gives the user the files in
// them.
func (r *Runtime) makeOwn(l launch) error {
	if l.User == nil {
		return nil
	}
	if err := r.users.makeCache(l.User.GID); err != nil {
		return err
	}
	own := slices.Collect(maps.Values(l.User.Temp))
	if r.cfg.WorkDir == "" {
		own = append(own, l.Dir)
	}
	if l.Slot != "" {
		own = append(own, l.Slot)
	}
	for _, dir := range own {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = chownTree(dir, l.User.UID, l.User.GID)
		}
		if err != nil {
			return fmt.Errorf("make a directory of the instance's own: %w", err)
		}
	}
	return nil
}
