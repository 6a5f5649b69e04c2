package nodeagent

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// addresses are the pods' addresses. Each belongs to one pod at a time, and the
// one that was given back last is given out last: who still has an address from
// before should not find a stranger behind it.
type addresses struct {
	cidr  netip.Prefix
	next  netip.Addr
	owner map[netip.Addr]types.UID
}

func newAddresses(cidr netip.Prefix) *addresses {
	cidr = cidr.Masked()
	return &addresses{cidr: cidr, next: cidr.Addr().Next(), owner: map[netip.Addr]types.UID{}}
}

// reserveFor keeps for a pod the address that its status has; false: it is not of
// the CIDR, or another pod's.
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

// takeFree finds a free address. The network's first and last are never given: a few
// programs treat them as special.
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
