package agent

import (
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
)

// hostFlags are the flags of --runtime process for the users of instances and the commands of images.
type hostFlags struct {
	InstanceUIDs    string   `name:"instance-uids" help:"Range of user and group ids for instances, FIRST-LAST. Nothing else on this host may use these ids. Each instance gets its own user, and each environment its own group (process runtime, as root)." default:"2100000000-2100065535" env:"WINDLASS_INSTANCE_UIDS"`
	InstanceGroups  []string `name:"instance-groups" help:"Additional groups of instances, by name or number, for access to devices: video,render (process runtime, as root)." env:"WINDLASS_INSTANCE_GROUPS"`
	PortIsolation   string   `name:"port-isolation" help:"Whether instances are kept from the ports of other environments on this host: auto (where the kernel can), require (do not start where it cannot) or off (process runtime, as root)." enum:"auto,require,off" default:"auto" env:"WINDLASS_PORT_ISOLATION"`
	ImageCommands   []string `name:"image-command" sep:";" placeholder:"IMAGE=COMMAND" help:"Command that this host runs for an image when an app has no command, such as vllm/vllm-openai=vllm serve. IMAGE has no tag. The app's args follow. Can be repeated, or several can be separated by semicolons (process runtime)." env:"WINDLASS_IMAGE_COMMANDS"`
	TrustAllTenants bool     `name:"trust-all-tenants" help:"Run the instances of all workspaces as the agent's own user. They can then read each other's secrets and the agent's credential (process runtime)." env:"WINDLASS_TRUST_ALL_TENANTS"`
}

// isolationOf returns how instances are isolated from each other and from the agent. Nil: they run as its user.
func (f hostFlags) isolationOf(uid int, dataDir string) (*process.Isolation, error) {
	switch {
	case f.TrustAllTenants && len(f.InstanceGroups) > 0:
		return nil, errors.New("--trust-all-tenants with --instance-groups: instances run as the agent's user, in its groups: leave one of them out")
	case f.PortIsolation == string(process.PortsRequire) && (f.TrustAllTenants || uid != 0):
		return nil, errors.New("--port-isolation=require: instances run as the agent's user, and so cannot be told apart: run the agent as root without --trust-all-tenants, or leave the flag out")
	case f.TrustAllTenants:
		return nil, nil
	case uid != 0 && len(f.InstanceGroups) > 0:
		return nil, fmt.Errorf("--instance-groups: an agent that runs as user %d gives instances no other groups than its own: run it as root, or leave the flag out", uid)
	case uid != 0:
		return nil, nil
	}
	ids, err := process.ParseIDRange(f.InstanceUIDs)
	if err != nil {
		return nil, fmt.Errorf("--instance-uids=%w", err)
	}
	groups, err := parseGroups(f.InstanceGroups)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, fmt.Errorf("--data-dir=%q: %w", dataDir, err)
	}
	out := &process.Isolation{IDs: ids, Groups: groups, Hide: []string{dir}, Ports: process.PortIsolation(f.PortIsolation)}
	if err := out.Check(); err != nil {
		return nil, fmt.Errorf("the agent is root and cannot isolate instances: %w; or let all instances run as root with --trust-all-tenants", err)
	}
	return out, nil
}

// parseGroups parses --instance-groups.
func parseGroups(names []string) ([]int, error) {
	var out []int
	for _, name := range names {
		id := name
		if g, err := user.LookupGroup(name); err == nil {
			id = g.Gid
		}
		gid, err := strconv.Atoi(id)
		if err != nil || gid < 0 {
			return nil, fmt.Errorf("--instance-groups: this host has no group %q: use names or numbers of groups, such as video,render", name)
		}
		if gid == 0 {
			return nil, fmt.Errorf("--instance-groups: %q is root's group, and no instance may read its files: use the group of the device", name)
		}
		out = append(out, gid)
	}
	return out, nil
}
