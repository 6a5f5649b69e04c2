//go:build linux && (amd64 || arm64)

package portguard

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// markSender writes the sender's group into the priority of the packets of instances that arrive on this
// host: packets that open a TCP connection, and datagrams. Only here does the kernel know the
// sending socket for certain. The source address and port are not enough, because several sockets
// may match them. The loopback interface does not use the priority otherwise.
//
// R6 is the packet, R7 is the sending socket, and R8 is the socket's tag.
func markSender(_ groups, m maps) asm.Instructions {
	in := append(packetSocket(), asm.JNE.Imm(asm.R1, connecting, "allow"))
	in = append(in, withLabel("tagged", getTag(m, asm.R7))...)
	in = append(in,
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.LoadMem(asm.R8, asm.R0, 0, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, packetInterface, asm.Word),
		asm.JEq.Imm(asm.R1, loopback, "mark"),
		// On other interfaces, only copies of datagrams to many hosts arrive on this host. For IPv4,
		// the kernel does not call this program for the copies. Other packets keep their priority.
		asm.LoadMem(asm.R1, asm.R6, packetEtherType, asm.Word),
		asm.JNE.Imm(asm.R1, etherType(unix.ETH_P_IPV6), "allow"),
	)
	in = append(in, loadPacket(24, stackByte, 1)...)
	in = append(in,
		asm.LoadMem(asm.R1, asm.RFP, stackByte, asm.Byte),
		asm.JNE.Imm(asm.R1, 255, "allow"), // the first byte of multicast addresses is 255
		asm.StoreMem(asm.R6, packetPriority, asm.R8, asm.Word).WithSymbol("mark"),
	)
	return append(in, endVerdicts()...)
}

// packetSocket writes the packet into R6 and its socket into R7. It jumps to the label tagged for
// UDP, and to allow if the packet has no socket, or one of another protocol than TCP and UDP. For TCP,
// it writes the socket's state into R1.
func packetSocket() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, packetSock, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "allow"),
		asm.FnSkFullsock.Call(),
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.LoadMem(asm.R1, asm.R7, sockProtocol, asm.Word),
		asm.JEq.Imm(asm.R1, unix.IPPROTO_UDP, "tagged"),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_TCP, "allow"),
		asm.LoadMem(asm.R1, asm.R7, sockState, asm.Word),
	}
}

// receive decides again when a packet arrives. The listener may have changed since the sender
// connected, and no other hook sees some ways to a socket. receive checks packets that open a TCP
// connection, and datagrams, if they go to sockets of instances.
//
// R6 is the packet, R7 is the receiving socket, R8 is the socket's tag, and R9 is the length of the
// IP header.
func receive(g groups, m maps) asm.Instructions {
	in := append(packetSocket(),
		asm.JEq.Imm(asm.R1, listening, "tagged"),
		asm.JNE.Imm(asm.R1, connecting, "allow"),
	)
	in = append(in, allowAnswers()...)
	in = append(in, withLabel("tagged", getTag(m, asm.R7))...)
	in = append(in,
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.LoadMem(asm.R8, asm.R0, 0, asm.Word),

		// No client reaches a port of another group here, not even a client of the host.
		asm.LoadMem(asm.R1, asm.R7, sockProtocol, asm.Word),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_TCP, "from"),
		asm.LoadMem(asm.R1, asm.R7, sockPort, asm.Word),
		asm.StoreMem(asm.RFP, stackPort, asm.R1, asm.Word),
	)
	in = append(in, ofPort(m, asm.R8, "from")...)
	in = append(in, withLabel("from", senderGroup(g))...)
	in = append(in,
		asm.LoadMem(asm.R1, asm.R6, packetEtherType, asm.Word).WithSymbol("unmarked"),
		asm.JEq.Imm(asm.R1, etherType(unix.ETH_P_IPV6), "packet6"),
		asm.JNE.Imm(asm.R1, etherType(unix.ETH_P_IP), "allow"),
	)
	// IPv4: the header's length is in its first byte, and its addresses are at offsets 12 and 16.
	in = append(in, loadPacket(0, stackByte, 1)...)
	in = append(in,
		asm.LoadMem(asm.R9, asm.RFP, stackByte, asm.Byte),
		asm.And.Imm(asm.R9, 15),
		asm.LSh.Imm(asm.R9, 2),
		asm.StoreImm(asm.RFP, stackKey+4, 0, asm.Word),
		asm.StoreImm(asm.RFP, stackKey+8, 0, asm.Word),
		asm.StoreImm(asm.RFP, stackKey+12, int64(wordOf(0, 0, 255, 255)), asm.Word),
	)
	in = append(in, loadPacket(12, stackKey+16, 4)...)
	in = append(in, ofThisHost(m, "own4")...)
	in = append(in, withLabel("own4", loadPacket(16, stackTuple, 4))...)
	in = append(in,
		asm.LoadMem(asm.R1, asm.RFP, stackKey+16, asm.Word),
		asm.StoreMem(asm.RFP, stackTuple+4, asm.R1, asm.Word),
	)
	in = append(in, findSender(m, "4", 12, 8)...)
	// IPv6: the addresses are at offsets 8 and 24. A packet of this host is refused if it has
	// extension headers before the TCP or UDP header.
	in = append(in, withLabel("packet6", loadPacket(8, stackKey+4, 16))...)
	in = append(in, ofThisHost(m, "own6")...)
	in = append(in, withLabel("own6", loadPacket(6, stackByte, 1))...)
	in = append(in,
		asm.LoadMem(asm.R1, asm.RFP, stackByte, asm.Byte),
		asm.LoadMem(asm.R2, asm.R7, sockProtocol, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, "deny"),
		asm.Mov.Imm(asm.R9, 40),
	)
	in = append(in, loadPacket(24, stackTuple, 16)...)
	for i := range int16(4) {
		in = append(in,
			asm.LoadMem(asm.R1, asm.RFP, stackKey+4+4*i, asm.Word),
			asm.StoreMem(asm.RFP, stackTuple+16+4*i, asm.R1, asm.Word),
		)
	}
	in = append(in, findSender(m, "6", 36, 32)...)
	return append(in, endVerdicts()...)
}

// allowAnswers allows the answer of a listener to a socket that connects, because the connection was
// checked before. Only the first packet of another socket that connects remains to be checked.
func allowAnswers() asm.Instructions {
	in := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, packetEtherType, asm.Word),
		asm.JEq.Imm(asm.R1, etherType(unix.ETH_P_IPV6), "opens6"),
	}
	in = append(in, loadPacket(0, stackByte, 1)...)
	in = append(in,
		asm.LoadMem(asm.R9, asm.RFP, stackByte, asm.Byte),
		asm.And.Imm(asm.R9, 15),
		asm.LSh.Imm(asm.R9, 2),
		asm.Ja.Label("flags"),
	)
	in = append(in, withLabel("opens6", loadPacket(6, stackByte, 1))...)
	return append(in,
		asm.LoadMem(asm.R1, asm.RFP, stackByte, asm.Byte),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_TCP, "tagged"),
		asm.Mov.Imm(asm.R9, 40),
		// The TCP flags are in byte 13 of the header.
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("flags"),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Add.Imm(asm.R2, 13),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, stackByte),
		asm.Mov.Imm(asm.R4, 1),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "deny"),
		asm.LoadMem(asm.R1, asm.RFP, stackByte, asm.Byte),
		asm.And.Imm(asm.R1, flagACK),
		asm.JNE.Imm(asm.R1, 0, "allow"),
	)
}

// flagACK is the flag of a TCP packet that answers another packet.
const flagACK = 16

// etherType returns a protocol number in the form that the kernel keeps with a packet.
func etherType(protocol uint16) int32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], protocol)
	return int32(binary.NativeEndian.Uint16(b[:]))
}

// loadPacket copies bytes of the packet's header to the stack. It denies a packet that is too
// short.
func loadPacket(from int32, to, size int16) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, from),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, int32(to)),
		asm.Mov.Imm(asm.R4, int32(size)),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "deny"),
	}
}

// ofThisHost allows packets of other hosts. For packets of this host, it jumps to the label own,
// which must come next. These packets arrive on the loopback interface, except copies of datagrams
// to many hosts.
func ofThisHost(m maps, own string) asm.Instructions {
	in := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, packetInterface, asm.Word),
		asm.JEq.Imm(asm.R1, loopback, own),
	}
	return append(in, isLocal(m)...)
}

// senderGroup decides by the group that markSender wrote into the packet. If there is none, it jumps to
// the label unmarked.
func senderGroup(g groups) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, packetPriority, asm.Word),
		asm.LoadImm(asm.R2, int64(g.first), asm.DWord),
		asm.JLT.Reg(asm.R1, asm.R2, "unmarked"),
		asm.LoadImm(asm.R2, int64(g.last), asm.DWord),
		asm.JGT.Reg(asm.R1, asm.R2, "unmarked"),
		asm.JEq.Reg(asm.R1, asm.R8, "allow"),
		asm.Ja.Label("deny"),
	}
}

// findSender finds the socket that sent the packet: the socket that an answer would reach. It allows
// the packet if this socket belongs to a process that is not an instance, or to the receiver's
// group. It decides about packets without a group: packets of programs that are not instances, and
// packets whose priority the host's firewall replaced. It denies copies of datagrams to many hosts.
func findSender(m maps, label string, size int32, ports int16) asm.Instructions {
	udp, found := "senderUDP"+label, "sender"+label
	in := asm.Instructions{
		// The header has the sender's port and then the receiver's port.
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, stackGID),
		asm.Mov.Imm(asm.R4, 4),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "deny"),
		asm.LoadMem(asm.R1, asm.RFP, stackGID+2, asm.Half),
		asm.StoreMem(asm.RFP, stackTuple+ports, asm.R1, asm.Half),
		asm.LoadMem(asm.R1, asm.RFP, stackGID, asm.Half),
		asm.StoreMem(asm.RFP, stackTuple+ports+2, asm.R1, asm.Half),
		asm.LoadMem(asm.R9, asm.R7, sockProtocol, asm.Word),
		asm.JEq.Imm(asm.R9, unix.IPPROTO_UDP, udp),
	}
	args := lookUpArgs(size)
	in = append(append(in, args...), asm.FnSkLookupTcp.Call(), asm.Ja.Label(found),
		// The socket that an answer would reach may not be the sender of a datagram to many hosts,
		// because an instance can send from a port that it holds only at another address.
		asm.LoadMem(asm.R1, asm.R6, packetInterface, asm.Word).WithSymbol(udp),
		asm.JNE.Imm(asm.R1, loopback, "deny"),
	)
	in = append(append(in, args...), asm.FnSkLookupUdp.Call(),
		// The sender is unknown if it closes its socket right after sending.
		asm.JEq.Imm(asm.R0, 0, "deny").WithSymbol(found),
	)
	return append(in, judgeSocket(m, "judge"+label, asm.R8, asm.R7)...)
}
