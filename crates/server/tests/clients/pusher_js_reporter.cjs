// A helper of Jasmine in the place of the one in pusher-js: prints the result of each spec as JSON.
const env = jasmine.getEnv();
env.clearReporters();
env.addReporter({
  specDone({ fullName, status, failedExpectations }) {
    console.log(JSON.stringify({ name: fullName, status, why: failedExpectations.map((it) => it.message) }));
  },
});
