package guard_test

import (
	"fmt"
	"net/netip"

	"github.com/windlass-run/windlass/pkg/guard"
)

func ExampleNetworks_Allows() {
	allowed, err := guard.Parse([]string{"10.1.0.0/16"})
	if err != nil {
		panic(err)
	}
	for _, address := range []string{"1.1.1.1", "10.1.2.3", "10.2.0.1", "127.0.0.1", "169.254.169.254"} {
		fmt.Println(address, allowed.Allows(netip.MustParseAddr(address)))
	}
	// Output:
	// 1.1.1.1 true
	// 10.1.2.3 true
	// 10.2.0.1 false
	// 127.0.0.1 false
	// 169.254.169.254 false
}
