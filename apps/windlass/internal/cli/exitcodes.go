package cli

import "github.com/spf13/cobra"

// exitCodesText is in the help of every command that waits.
const exitCodesText = "Exit codes: `windlass help exit-codes`."

// exitCodesTopic is `windlass help exit-codes`.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes of commands mean",
		Long: `Exit codes:

    0  done: what was asked for is so, or is accepted with --wait=false
    1  failed or refused: standard error says why, and how to go on
    2  plan, deploy --dry-run=server: it would not run
    3  --patience ended before it was done; it goes on by itself
    4  superseded: another version, or another number of replicas, was asked for since
    5  waits for people: a promotion, an approval, or the end of somebody's pause
    6  paused by a failure: retry, promote or abort it
  130  interrupted (Ctrl-C); what was started goes on by itself

Codes 3 to 6 are those of commands that wait for a rollout or its likes: deploy, env set,
rollback, scale, rollout status --watch, and secret set, which ends as the rollout that
came to the worst end. With --until promotion, 5 is 0.

With -o json or -o yaml standard output holds the answer and nothing else, also where a
rollout that began failed: "outcome" is then a word for the code (succeeded, unchanged,
accepted, failed, taken-back, under-way, superseded, waits-for-people, paused,
interrupted), and "app" and "rollout" are as they were at the end. It is empty where a
call was refused. Errors are texts on standard error, whatever the form of the output.`,
	}
}
