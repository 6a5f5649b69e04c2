// Command withstack runs a command with a private MariaDB and Restate:
//
//	withstack [--] go test ./...
//
// It sets WINDLASS_TEST_MYSQL, WINDLASS_TEST_RESTATE_INGRESS and WINDLASS_TEST_RESTATE_ADMIN for the command.
// When the command ends, withstack stops both, removes their data, and exits with the command's code.
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
