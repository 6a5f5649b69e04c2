package certfile_test

import (
	"fmt"

	"github.com/windlass-run/windlass/pkg/certfile"
)

func ExampleLoopback() {
	for _, address := range []string{"127.0.0.1:7700", "localhost:7700", "[::1]:7700", "10.0.0.5:7700", "windlass.example.com"} {
		fmt.Println(address, certfile.Loopback(address))
	}
	// Output:
	// 127.0.0.1:7700 true
	// localhost:7700 true
	// [::1]:7700 true
	// 10.0.0.5:7700 false
	// windlass.example.com false
}

func ExampleClientFlags_CheckURL() {
	var flags certfile.ClientFlags
	fmt.Println(flags.CheckURL("https://windlass.example.com") == nil)
	fmt.Println(flags.CheckURL("http://127.0.0.1:7700") == nil)
	fmt.Println(flags.CheckURL("http://windlass.example.com") == nil) // a key would be sent without encryption
	flags.Insecure = true
	fmt.Println(flags.CheckURL("http://windlass.example.com") == nil)
	// Output:
	// true
	// true
	// false
	// true
}
