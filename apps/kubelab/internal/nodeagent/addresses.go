package nodeagent

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// addresses gives addresses to pods. Each address belongs to one pod at a time. A released address is reused
// as late as possible, so that clients of the old pod do not reach another pod.
type addresses struct {
	cidr  netip.Prefix
	next  netip.Addr
	owner map[netip.Addr]types.UID
}

func newAddresses(cidr netip.Prefix) *addresses {
	cidr = cidr.Masked()
	return &addresses{cidr: cidr, next: cidr.Addr().Next(), owner: map[netip.Addr]types.UID{}}
}

// reserveFor reserves addr, which a pod's status has, for that pod. It returns false if addr is outside the
// CIDR or belongs to another pod.
func (a *addresses) reserveFor(addr netip.Addr, uid types.UID) bool {
	if owner, taken := a.owner[addr]; taken {
		return owner == uid
	}
	if !a.cidr.Contains(addr) {
		return false
	}
	a.owner[addr] = uid
	return true
}

// takeFree takes a free address. It skips the network's first and last address, which a few programs treat as
// special.
func (a *addresses) takeFree(uid types.UID) (netip.Addr, error) {
	for range 1 << (32 - a.cidr.Bits()) {
		addr := a.next
		if a.next = addr.Next(); !a.cidr.Contains(a.next) {
			a.next = a.cidr.Addr().Next()
			continue
		}
		if _, taken := a.owner[addr]; !taken {
			a.owner[addr] = uid
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address is free in %s: %d pods have one", a.cidr, len(a.owner))
}

func (a *addresses) release(addr netip.Addr, uid types.UID) {
	if a.owner[addr] == uid {
		delete(a.owner, addr)
	}
}
