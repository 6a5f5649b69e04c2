package strict_test

import (
	"fmt"

	"github.com/windlass-run/windlass/pkg/strict"
)

func ExampleRequests_Check() {
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\n\r\n", // a line that ends in a bare LF
		"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
	} {
		var r strict.Requests
		_, err := r.Check([]byte(request))
		fmt.Println(err == nil)
	}
	// Output:
	// true
	// false
	// false
}
