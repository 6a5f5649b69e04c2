//go:build linux && (amd64 || arm64)

package portguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Guard keeps the instances of an agent from each other's ports.
type Guard struct {
	maps  maps
	known map[prefix]bool
	// changes reports addresses that the host gets or loses.
	changes *os.File
}

// Open puts the guard of a range of groups in force. It replaces the guard that an earlier agent
// left. The new guard knows the sockets that instances have open. The error says why a guard is not
// possible on this host.
func Open(first, last uint32) (*Guard, error) {
	g := &Guard{known: map[prefix]bool{}}
	if err := g.open(groups{first, last}); err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, nil
}

func (g *Guard) open(ids groups) error {
	root, err := openRoot()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	// Kernels before 5.11 count maps against a limit of the process.
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	old, err := attachedPrograms(root, ids)
	if err != nil {
		return err
	}
	defer old.close()
	if g.maps, err = old.mapsInForce(); err != nil {
		return err
	}
	if g.changes, err = addressChanges(); err != nil {
		return fmt.Errorf("follow the host's addresses: %w", err)
	}
	if err := g.readAddresses(); err != nil {
		return err
	}
	for _, h := range hooks {
		if err := g.attachProgram(root, h, ids, old[h.name]); err != nil {
			return fmt.Errorf("%s: %w", h.attach, err)
		}
	}
	return g.adoptSockets(ids)
}

// attachProgram puts a program in force. In the same step, it removes the old program.
func (g *Guard) attachProgram(root *os.File, h hook, ids groups, old *ebpf.Program) error {
	p, err := ebpf.NewProgram(h.programSpec(ids, g.maps))
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer func() { _ = p.Close() }()
	opts := link.RawAttachProgramOptions{Target: int(root.Fd()), Program: p, Attach: h.attach, Flags: unix.BPF_F_ALLOW_MULTI}
	if old != nil {
		opts.Anchor = link.ReplaceProgram(old)
	}
	if err := link.RawAttachProgram(opts); err != nil {
		return fmt.Errorf("attach a program: %w", err)
	}
	return nil
}

// Close releases the guard. The guard stays in force until the host restarts, because instances
// keep running without the agent.
func (g *Guard) Close() error {
	var err error
	for _, m := range []*ebpf.Map{g.maps.tags, g.maps.local, g.maps.ports} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	if g.changes != nil {
		err = errors.Join(err, g.changes.Close())
	}
	return err
}

// Remove removes the guard that is in force for the range, if there is one.
func Remove(first, last uint32) error {
	root, err := openRoot()
	if errors.Is(err, errNoCgroups) {
		return nil // without cgroups, no guard can be in force
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	old, err := attachedPrograms(root, groups{first, last})
	if err != nil {
		return err
	}
	defer old.close()
	for _, h := range hooks {
		p := old[h.name]
		if p == nil {
			continue
		}
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(root.Fd()), Program: p, Attach: h.attach}); err != nil {
			return fmt.Errorf("detach a program of %s: %w", h.attach, err)
		}
	}
	return nil
}

// programs has the programs in force, by the name of their hook.
type programs map[string]*ebpf.Program

func (p programs) close() {
	for _, one := range p {
		_ = one.Close()
	}
}

// attachedPrograms returns the programs of the guard that is in force for the range.
func attachedPrograms(root *os.File, ids groups) (programs, error) {
	out := programs{}
	for _, h := range hooks {
		res, err := link.QueryPrograms(link.QueryOptions{Target: int(root.Fd()), Attach: h.attach})
		if err != nil {
			out.close()
			return nil, fmt.Errorf("list programs of %s: %w", h.attach, err)
		}
		for _, a := range res.Programs {
			p, err := ebpf.NewProgramFromID(a.ID)
			if errors.Is(err, os.ErrNotExist) {
				continue // the program was removed meanwhile
			}
			if err != nil {
				out.close()
				return nil, fmt.Errorf("look at program %d: %w", a.ID, err)
			}
			info, err := p.Info()
			if err != nil || info.Name != programName(h, ids) || out[h.name] != nil {
				_ = p.Close()
				continue
			}
			out[h.name] = p
		}
	}
	return out, nil
}

// mapsInForce returns the maps of the programs in force, so that the tags of open sockets stay. It makes
// the maps that are missing.
func (p programs) mapsInForce() (m maps, err error) {
	for _, one := range p {
		info, err := one.Info()
		if err != nil {
			return m, fmt.Errorf("look at a program: %w", err)
		}
		ids, _ := info.MapIDs()
		for _, id := range ids {
			found, err := ebpf.NewMapFromID(id)
			if err != nil {
				return m, fmt.Errorf("open map %d: %w", id, err)
			}
			switch {
			case m.tags == nil && fitsSpec(found, tagsSpec()):
				m.tags = found
			case m.local == nil && fitsSpec(found, localSpec()):
				m.local = found
			case m.ports == nil && fitsSpec(found, portsSpec()):
				m.ports = found
			default:
				_ = found.Close()
			}
		}
	}
	if m.tags == nil {
		if m.tags, err = ebpf.NewMap(tagsSpec()); err != nil {
			return m, fmt.Errorf("make a map of sockets: %w", err)
		}
	}
	if m.local == nil {
		if m.local, err = ebpf.NewMap(localSpec()); err != nil {
			return m, fmt.Errorf("make a map of addresses: %w", err)
		}
	}
	if m.ports == nil {
		if m.ports, err = ebpf.NewMap(portsSpec()); err != nil {
			return m, fmt.Errorf("make a map of ports: %w", err)
		}
	}
	return m, nil
}

func fitsSpec(m *ebpf.Map, s *ebpf.MapSpec) bool {
	return m.Type() == s.Type && m.KeySize() == s.KeySize && m.ValueSize() == s.ValueSize && m.Flags() == s.Flags
}

var errNoCgroups = errors.New("this host has no cgroup v2")

// openRoot opens the root of the host's cgroup hierarchy (v2), which contains all processes.
func openRoot() (*os.File, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		// The number of fields of mountinfo(5) before " - " varies. The fifth field is the mount
		// point.
		at, kind, _ := strings.Cut(line, " - ")
		if f := strings.Fields(at); len(f) > 4 && strings.HasPrefix(kind, "cgroup2 ") {
			return os.Open(f[4])
		}
	}
	return nil, errNoCgroups
}

// Reserve reserves TCP ports for a group: no other group of the range can bind them or gets their
// clients.
func (g *Guard) Reserve(gid uint32, ports ...int) error {
	for _, p := range ports {
		if err := g.maps.ports.Put(uint32(p), gid); err != nil {
			return fmt.Errorf("reserve port %d: %w", p, err)
		}
	}
	return nil
}

// Free makes the ports available to every group.
func (g *Guard) Free(ports ...int) error {
	for _, p := range ports {
		if err := g.maps.ports.Delete(uint32(p)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("free port %d: %w", p, err)
		}
	}
	return nil
}

// Keep frees all ports except these. An agent calls it at its start, because it then knows the
// ports of instances.
func (g *Guard) Keep(ports map[int]bool) error {
	var gone []int
	var p, gid uint32
	all := g.maps.ports.Iterate()
	for all.Next(&p, &gid) {
		if !ports[int(p)] {
			gone = append(gone, int(p))
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("list the reserved ports: %w", err)
	}
	return g.Free(gone...)
}

// Run keeps the guard's list of the host's addresses up to date until ctx ends.
func (g *Guard) Run(ctx context.Context, failed func(error)) {
	stop := context.AfterFunc(ctx, func() { _ = g.changes.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 1<<16)
	for ctx.Err() == nil {
		// Each message means that an address changed. If a message was lost, Read returns an error.
		_, err := g.changes.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			if ctx.Err() == nil {
				failed(fmt.Errorf("follow the host's addresses: %w", err))
			}
			return
		}
		if err := g.readAddresses(); err != nil {
			failed(err)
		}
	}
}

// addressChanges opens a kernel socket that reports each change of the host's addresses.
func addressChanges() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// prefix is a key of maps.local: an IPv6 address and the length of the prefix in bits.
type prefix struct {
	Bits uint32
	IP   [16]byte
}

func prefixOf(ip net.IP, bits int) prefix {
	p := prefix{Bits: uint32(bits)}
	if ip.To4() != nil {
		p.Bits += 96
	}
	copy(p.IP[:], ip.To16())
	return p
}

// readAddresses updates the list of the host's addresses.
func (g *Guard) readAddresses() error {
	now := map[prefix]bool{prefixOf(net.IPv4(127, 0, 0, 0), 8): true, prefixOf(net.IPv6loopback, 128): true}
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list the host's interfaces: %w", err)
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface was removed meanwhile
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			bits, all := n.Mask.Size()
			ip := n.IP
			if i.Flags&net.FlagLoopback == 0 {
				bits = all
			} else {
				ip = ip.Mask(n.Mask) // the whole network of a loopback interface is this host
			}
			now[prefixOf(ip, bits)] = true
		}
	}
	for p := range now {
		if err := g.maps.local.Put(p, uint8(1)); err != nil {
			return fmt.Errorf("note an address of the host: %w", err)
		}
	}
	// The keys come from the map, because an earlier agent may have filled it.
	var gone []prefix
	var p prefix
	var one uint8
	all := g.maps.local.Iterate()
	for all.Next(&p, &one) {
		if !now[p] {
			gone = append(gone, p)
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("list the noted addresses of the host: %w", err)
	}
	for _, p := range gone {
		if err := g.maps.local.Delete(p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget an address of the host: %w", err)
		}
	}
	return nil
}
