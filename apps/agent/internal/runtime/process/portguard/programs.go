//go:build linux && (amd64 || arm64)

package portguard

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// These are offsets in the kernel's structs bpf_sock_addr, bpf_sock, __sk_buff and bpf_sockopt
// (include/uapi/linux/bpf.h).
const (
	addrIP4      = 4
	addrIP6      = 8 // four words
	addrPort     = 24
	addrProtocol = 36
	addrSock     = 64

	sockProtocol = 12
	sockPort     = 44 // the socket's own port, in the host's byte order
	sockState    = 72

	packetEtherType = 16
	packetPriority  = 32
	packetInterface = 40
	packetSock      = 168

	optionSock   = 0
	optionLevel  = 24
	optionName   = 28
	optionLength = 32
)

// listening and connecting are the states of a TCP socket that a first packet can reach. loopback
// is the number of the interface that a host uses for packets to itself.
const (
	connecting = 2
	listening  = 10
	loopback   = 1
)

// These are places on a program's stack, as distances from its end.
const (
	stackKey   = -24 // 20 bytes: the length of the prefix in bits, and an IPv6 address
	stackTuple = -64 // 36 bytes: the kernel's struct bpf_sock_tuple
	stackGID   = -72
	stackPort  = -76
	stackByte  = -80
)

// maps has the maps that the programs of one guard share.
type maps struct {
	// tags has, by socket, the group of the process that made the socket.
	tags *ebpf.Map
	// local has the addresses of the host as IPv6 prefixes.
	local *ebpf.Map
	// ports has, by TCP port, the group that has the port, whether or not it listens.
	ports *ebpf.Map
}

func tagsSpec() *ebpf.MapSpec {
	number := &btf.Int{Name: "unsigned int", Size: 4}
	return &ebpf.MapSpec{
		// The socket of an accepted connection inherits the tag of the listening socket. It may be
		// disconnected and used again.
		Name: "windlass_tags", Type: ebpf.SkStorage, KeySize: 4, ValueSize: 4, Flags: unix.BPF_F_NO_PREALLOC | unix.BPF_F_CLONE,
		Key: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}, Value: number,
	}
}

func localSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "windlass_local", Type: ebpf.LPMTrie, KeySize: 20, ValueSize: 1, MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC,
	}
}

func portsSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "windlass_ports", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 65536}
}

// hook is a place in the kernel where a program of the guard decides.
type hook struct {
	name   string
	kind   ebpf.ProgramType
	attach ebpf.AttachType
	body   func(groups, maps) asm.Instructions
}

var hooks = []hook{
	{"mk", ebpf.CGroupSock, ebpf.AttachCGroupInetSockCreate, create},
	{"c4", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, send4},
	{"c6", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Connect, send6},
	{"s4", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP4Sendmsg, send4},
	{"s6", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Sendmsg, send6},
	{"b4", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Bind, denyForeignPorts},
	{"b6", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Bind, denyForeignPorts},
	{"so", ebpf.CGroupSockopt, ebpf.AttachCGroupSetsockopt, ignoreReuse},
	{"out", ebpf.CGroupSKB, ebpf.AttachCGroupInetEgress, markSender},
	{"in", ebpf.CGroupSKB, ebpf.AttachCGroupInetIngress, receive},
}

// groups is a range of group ids, including its ends.
type groups struct{ first, last uint32 }

// programName returns the name of a guard's program in the kernel, by which the next agent finds
// it. The name has at most 15 letters.
func programName(h hook, g groups) string {
	sum := fnv.New32a()
	_, _ = fmt.Fprint(sum, g.first, "-", g.last)
	return fmt.Sprintf("wl_%s_%08x", h.name, sum.Sum32())
}

func (h hook) programSpec(g groups, m maps) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: programName(h, g), Type: h.kind, AttachType: h.attach, License: "Apache-2.0", Instructions: h.body(g, m)}
}

// ofGroups puts the context into R6 and the group of the calling process into R7. It allows
// everything to processes of groups outside g.
func ofGroups(g groups) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetCurrentUidGid.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.RSh.Imm(asm.R7, 32),
		// 32-bit immediates are signed, so ids are compared by registers.
		asm.LoadImm(asm.R1, int64(g.first), asm.DWord),
		asm.JLT.Reg(asm.R7, asm.R1, "allow"),
		asm.LoadImm(asm.R1, int64(g.last), asm.DWord),
		asm.JGT.Reg(asm.R7, asm.R1, "allow"),
	}
}

// ofInstances is ofGroups for existing sockets. It tags sockets without a tag, because the kernel
// makes some sockets itself.
func ofInstances(g groups, m maps) asm.Instructions {
	in := append(ofGroups(g),
		asm.LoadMem(asm.R2, asm.R6, addrSock, asm.DWord),
		asm.JEq.Imm(asm.R2, 0, "deny"),
	)
	return append(in, setTag(m)...)
}

// setTag tags the socket in R2 with the group in R7, unless it has a tag.
func setTag(m maps) asm.Instructions {
	return asm.Instructions{
		asm.StoreMem(asm.RFP, stackGID, asm.R7, asm.Word),
		asm.LoadMapPtr(asm.R1, m.tags.FD()),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, stackGID),
		asm.Mov.Imm(asm.R4, unix.BPF_SK_STORAGE_GET_F_CREATE),
		asm.FnSkStorageGet.Call(),
		asm.JEq.Imm(asm.R0, 0, "deny"), // the kernel has no memory for the tag
	}
}

// getTag puts the address of a socket's tag into R0, or 0 if it has none.
func getTag(m maps, socket asm.Register) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.tags.FD()),
		asm.Mov.Reg(asm.R2, socket),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkStorageGet.Call(),
	}
}

// judgeSocket ends a search. It allows the socket in R0 if it has no tag, because then it does not belong
// to an instance, or if its tag is the group in own. Otherwise, it denies.
func judgeSocket(m maps, label string, own, other asm.Register) asm.Instructions {
	in := append(asm.Instructions{asm.Mov.Reg(asm.R9, asm.R0)}, getTag(m, asm.R9)...)
	return append(in,
		asm.Mov.Reg(other, own),
		asm.JEq.Imm(asm.R0, 0, label),
		asm.LoadMem(other, asm.R0, 0, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R9).WithSymbol(label),
		asm.FnSkRelease.Call(),
		asm.JEq.Reg(other, own, "allow"),
		asm.Ja.Label("deny"),
	)
}

// endVerdicts returns the end of each program.
func endVerdicts() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("deny"),
		asm.Return(),
	}
}

// create tags the sockets of instances with their group. It refuses protocols whose sockets hide
// other sockets without a tag, such as Multipath TCP. Go and other programs then use TCP instead.
func create(g groups, m maps) asm.Instructions {
	in := append(ofGroups(g), asm.LoadMem(asm.R1, asm.R6, sockProtocol, asm.Word))
	for _, allowed := range []int32{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		in = append(in, asm.JEq.Imm(asm.R1, allowed, "tag"))
	}
	in = append(in, asm.Ja.Label("deny"), asm.Mov.Reg(asm.R2, asm.R6).WithSymbol("tag"))
	in = append(in, setTag(m)...)
	return append(in, endVerdicts()...)
}

// denyForeignPorts denies instances the TCP ports of other groups, because clients of an instance that has
// ended must not reach another group's instance.
func denyForeignPorts(g groups, m maps) asm.Instructions {
	in := append(ofInstances(g, m),
		asm.LoadMem(asm.R1, asm.R6, addrProtocol, asm.Word),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_TCP, "allow"),
		asm.LoadMem(asm.R1, asm.R6, addrPort, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.StoreMem(asm.RFP, stackPort, asm.R1, asm.Word),
	)
	in = append(in, ofPort(m, asm.R7, "allow")...)
	return append(in, endVerdicts()...)
}

// ignoreReuse ignores SO_REUSEADDR if an instance sets it on a UDP socket. With this option, sockets of
// several groups could share a port, and each could receive datagrams of another group. Programs
// also set the option where they need not share a port, so the call returns no error.
func ignoreReuse(g groups, _ maps) asm.Instructions {
	in := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, optionLevel, asm.Word),
		asm.JNE.Imm(asm.R1, unix.SOL_SOCKET, "other"),
		asm.LoadMem(asm.R1, asm.R6, optionName, asm.Word),
		asm.JNE.Imm(asm.R1, unix.SO_REUSEADDR, "other"),
		asm.LoadMem(asm.R1, asm.R6, optionSock, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "other"),
		asm.LoadMem(asm.R1, asm.R1, sockProtocol, asm.Word),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_UDP, "other"),
		asm.Mov.Reg(asm.R1, asm.R6),
	}
	in = append(in, ofGroups(g)...)
	return append(in,
		asm.Mov.Imm(asm.R1, -1), // the kernel ends the call without an error
		asm.StoreMem(asm.R6, optionLength, asm.R1, asm.Word),
		asm.Ja.Label("allow"),

		// Kernels before 6.5 return an error for a value that is longer than a page. By the length
		// 0, the program says that it has not changed the value, and there is no error.
		asm.LoadMem(asm.R1, asm.R6, optionLength, asm.Word).WithSymbol("other"),
		asm.JSLE.Imm32(asm.R1, 4096, "allow"), // another program wrote -1, which ends the call
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.R6, optionLength, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"),
		asm.Return(),
	)
}

// ofPort denies if the port on the stack belongs to another group than own. If it belongs to no
// group, it jumps to the label none.
func ofPort(m maps, own asm.Register, none string) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.ports.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackPort),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, none),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.JNE.Reg(asm.R1, own, "deny"),
	}
}

// send4 refuses connections and packets of instances to an IPv4 address if they would reach a
// socket of another group on this host.
func send4(g groups, m maps) asm.Instructions {
	in := append(ofInstances(g, m),
		asm.LoadMem(asm.R8, asm.R6, addrIP4, asm.Word),
		asm.JNE.Imm(asm.R8, 0, "ip4"),
		// 0.0.0.0 means this host. It is replaced, so that the kernel uses the address that is checked.
		asm.Mov.Imm(asm.R8, wordOf(127, 0, 0, 1)),
		asm.StoreMem(asm.R6, addrIP4, asm.R8, asm.Word),
	)
	in = append(in, judge4(m)...)
	return append(in, endVerdicts()...)
}

// send6 is send4 for IPv6 sockets, which also reach IPv4 addresses.
func send6(g groups, m maps) asm.Instructions {
	in := append(ofInstances(g, m),
		asm.LoadMem(asm.R8, asm.R6, addrIP6+12, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, addrIP6, asm.Word),
		asm.JNE.Imm(asm.R1, 0, "ip6"),
		asm.LoadMem(asm.R1, asm.R6, addrIP6+4, asm.Word),
		asm.JNE.Imm(asm.R1, 0, "ip6"),
		asm.LoadMem(asm.R1, asm.R6, addrIP6+8, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "zeros"),
		asm.LoadImm(asm.R2, int64(uint32(wordOf(0, 0, 255, 255))), asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "ip6"),
		asm.JNE.Imm(asm.R8, 0, "ip4"),
		asm.Mov.Imm(asm.R8, wordOf(127, 0, 0, 1)),
		asm.StoreMem(asm.R6, addrIP6+12, asm.R8, asm.Word),
		asm.Ja.Label("ip4"),

		asm.JNE.Imm(asm.R8, 0, "ip6").WithSymbol("zeros"),
		asm.Mov.Imm(asm.R8, wordOf(0, 0, 0, 1)),
		asm.StoreMem(asm.R6, addrIP6+12, asm.R8, asm.Word),
	)
	// At the label "ip6", R8 is the last word of the address.
	six := asm.Instructions{asm.StoreMem(asm.RFP, stackKey+16, asm.R8, asm.Word).WithSymbol("ip6")}
	six = append(six, asm.StoreMem(asm.RFP, stackTuple+28, asm.R8, asm.Word))
	for i := range int16(3) {
		six = append(six,
			asm.LoadMem(asm.R1, asm.R6, addrIP6+4*i, asm.Word),
			asm.StoreMem(asm.RFP, stackKey+4+4*i, asm.R1, asm.Word),
			asm.StoreMem(asm.RFP, stackTuple+16+4*i, asm.R1, asm.Word),
		)
	}
	six = append(six, isLocal(m)...)
	for i := range int16(4) {
		six = append(six, asm.StoreImm(asm.RFP, stackTuple+4*i, 0, asm.Word))
	}
	six = append(six, lookUp(m, "6", 36, 32)...)
	in = append(append(in, six...), judge4(m)...)
	return append(in, endVerdicts()...)
}

// judge4 begins at the label "ip4", with the address in R8.
func judge4(m maps) asm.Instructions {
	in := asm.Instructions{
		asm.StoreImm(asm.RFP, stackKey+4, 0, asm.Word).WithSymbol("ip4"),
		asm.StoreImm(asm.RFP, stackKey+8, 0, asm.Word),
		asm.StoreImm(asm.RFP, stackKey+12, int64(wordOf(0, 0, 255, 255)), asm.Word),
		asm.StoreMem(asm.RFP, stackKey+16, asm.R8, asm.Word),
	}
	in = append(in, isLocal(m)...)
	in = append(in,
		asm.StoreImm(asm.RFP, stackTuple, 0, asm.Word),
		asm.StoreMem(asm.RFP, stackTuple+4, asm.R8, asm.Word),
	)
	return append(in, lookUp(m, "4", 12, 8)...)
}

// isLocal allows packets to or from other hosts. The address is on the stack.
func isLocal(m maps) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, stackKey, 128, asm.Word),
		asm.LoadMapPtr(asm.R1, m.local.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "allow"),
	}
}

// lookUp finds the socket that would receive. It denies if the socket has the tag of another group.
// The addresses of the tuple are on the stack, and its ports are at ports. size is the size of the
// tuple for IPv4 or IPv6.
func lookUp(m maps, label string, size int32, ports int16) asm.Instructions {
	udp, found := "udp"+label, "found"+label
	args := lookUpArgs(size)
	in := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, addrPort, asm.Word),
		asm.StoreImm(asm.RFP, stackTuple+ports, 0, asm.Half),
		asm.StoreMem(asm.RFP, stackTuple+ports+2, asm.R1, asm.Half),
		asm.LoadMem(asm.R9, asm.R6, addrProtocol, asm.Word),
		asm.JEq.Imm(asm.R9, unix.IPPROTO_UDP, udp),
		asm.JNE.Imm(asm.R9, unix.IPPROTO_TCP, "allow"),
	}
	in = append(append(in, args...), asm.FnSkLookupTcp.Call(), asm.Ja.Label(found))
	in = append(append(in, withLabel(udp, args)...), asm.FnSkLookupUdp.Call(), asm.JEq.Imm(asm.R0, 0, "allow").WithSymbol(found))
	return append(in, judgeSocket(m, "judge"+label, asm.R7, asm.R8)...)
}

// withLabel gives instructions a label, to which other instructions can jump.
func withLabel(name string, in asm.Instructions) asm.Instructions {
	in[0] = in[0].WithSymbol(name)
	return in
}

// lookUpArgs sets the arguments of a search for the socket of the tuple on the stack. The call
// overwrites R1 to R5.
func lookUpArgs(size int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackTuple),
		asm.Mov.Imm(asm.R3, size),
		asm.Mov.Imm(asm.R4, -1), // BPF_F_CURRENT_NETNS
		asm.Mov.Imm(asm.R5, 0),
	}
}

// wordOf returns four bytes of an address in the form in which the kernel's programs load them.
func wordOf(b ...byte) int32 { return int32(binary.NativeEndian.Uint32(b)) }
