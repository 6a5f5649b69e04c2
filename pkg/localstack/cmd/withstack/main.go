// Command withstack runs a command with a MariaDB and a Restate of its own:
//
//	withstack [--] go test ./...
//
// The command finds them in WINDLASS_TEST_MYSQL, WINDLASS_TEST_RESTATE_INGRESS
// and WINDLASS_TEST_RESTATE_ADMIN. Both are stopped, and their data removed,
// when it ends; withstack exits with its code.
package main

import (
	"fmt"
	"os"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withstack:", err)
	}
	os.Exit(code)
}
